"""Sandboxes and an approver for Inspect (`inspect_ai`).

Inspect finds both by itself, as `rousseau`, once this package is installed beside it:

    Task(..., sandbox="rousseau")
    Task(..., sandbox=SandboxEnvironmentSpec("rousseau", RousseauConfig(network="allowlist")))
    Task(..., approval=[ApprovalPolicy(rousseau(policy="reviewer"), "bash*")])
"""

from runner.integrations.common import missing

try:
    import inspect_ai  # noqa: F401  (to say what to do where it is missing)
except ImportError as error:
    raise missing("inspect", error) from error

from runner.integrations.inspect.approver import rousseau
from runner.integrations.inspect.config import RousseauConfig
from runner.integrations.inspect.environment import RousseauSandboxEnvironment

__all__ = ["RousseauConfig", "RousseauSandboxEnvironment", "rousseau"]
