"""What Inspect loads, by the entry point of this package, to learn of our parts."""

from runner.integrations.inspect.approver import rousseau
from runner.integrations.inspect.environment import RousseauSandboxEnvironment

__all__ = ["RousseauSandboxEnvironment", "rousseau"]
