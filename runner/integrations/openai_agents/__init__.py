"""OpenAI's Agents SDK: a sandbox client, executors for its own tools, and a registry's tools.

- `RousseauSandboxClient`: sandboxes for `SandboxAgent`s, each a session (`sandbox`).
- `ShellExecutor` for `ShellTool(executor=…)`, `SessionEditor` for `ApplyPatchTool(editor=…)`,
  and `function_tools` for models that know neither (`tools`).
"""

from runner.integrations.openai_agents.sandbox import (
    DeniedByPolicy,
    RousseauSandboxClient,
    RousseauSandboxClientOptions,
    RousseauSandboxSession,
    RousseauSandboxSessionState,
)
from runner.integrations.openai_agents.tools import SessionEditor, ShellExecutor, function_tools

__all__ = [
    "DeniedByPolicy",
    "RousseauSandboxClient",
    "RousseauSandboxClientOptions",
    "RousseauSandboxSession",
    "RousseauSandboxSessionState",
    "SessionEditor",
    "ShellExecutor",
    "function_tools",
]
