"""Sessions behind the tools of OpenAI's Agents SDK: shell, apply_patch, and function tools.

It owns how our results look to that SDK. It decides nothing.
"""

import base64
import shlex
from collections.abc import Collection
from typing import Any

from runner.client import AsyncSession
from runner.errors import RunnerError
from runner.integrations.common import definitions, in_workspace, missing, require
from runner.model import Status, ToolResult

try:
    from agents import (
        FunctionTool,
        ShellCallOutcome,
        ShellCommandOutput,
        ShellCommandRequest,
        ShellResult,
        apply_diff,
    )
    from agents.editor import ApplyPatchOperation, ApplyPatchResult
    from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext
except ImportError as error:
    raise missing("openai-agents", error) from error

NOT_RUN = 126
"""What a shell's exit status is where a command was found but may not be run."""


class ShellExecutor:
    """Runs the commands of `ShellTool(executor=ShellExecutor(session))`, each as a call of `bash`.

    After a command that ran out of time, the rest of its request is not run.

    Args:
        session: Where they run.
    """

    def __init__(self, session: AsyncSession):
        self._session = session

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands of a request, one after another.

        A denied command has the exit status 126, and the policy's words on standard error.
        """
        action = request.data.action
        outputs: list[ShellCommandOutput] = []
        for command in action.commands:
            timeout_s = action.timeout_ms / 1000 if action.timeout_ms else None
            outputs.append(await self._run(command, timeout_s))
            if outputs[-1].outcome.type == "timeout":
                break
        return ShellResult(outputs, max_output_length=action.max_output_length)

    async def _run(self, command: str, timeout_s: float | None) -> ShellCommandOutput:
        arguments = {"command": command, "separate_stderr": True}
        try:
            result = await self._session.call("bash", arguments, timeout_s=timeout_s)
        except RunnerError as error:
            outcome = ShellCallOutcome("exit", NOT_RUN)
            return ShellCommandOutput("", f"bash: {error}", outcome, command)
        outcome = ShellCallOutcome("exit", exit_code(result))
        if result.status is Status.TIMED_OUT:
            outcome = ShellCallOutcome("timeout")
        return ShellCommandOutput(result.output, standard_error(result), outcome, command)


def exit_code(result: ToolResult) -> int:
    """The command's exit status; of one that never ran, 126."""
    return NOT_RUN if result.exit_code is None else result.exit_code


def standard_error(result: ToolResult) -> str:
    """What the command said there, and our own words where its exit status does not say it all."""
    written = str(result.details.get("stderr", ""))
    if result.error is None or (result.status is Status.FAILED and result.exit_code is not None):
        return written
    return f"{written}\n{result.error}" if written else result.error


class SessionEditor:
    """Applies patches: `ApplyPatchTool(editor=SessionEditor(session))`.

    A file is read and written whole, by the tools `read` and `write`; one is removed by `rm`, a
    call of `bash`. Each is judged as any other call.

    Args:
        session: Where the files are. Relative paths are taken from the workspace.

    Raises:
        ConfigurationError: The runner lacks one of these tools.
    """

    def __init__(self, session: AsyncSession):
        require(session, ("read", "write", "bash"))
        self._session = session

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Write a file that consists of the patch's lines."""
        try:
            content = apply_diff("", operation.diff or "", "create")
        except ValueError as error:
            return ApplyPatchResult("failed", f"{operation.path}: {error}")
        return await self._write(operation.path, content, f"created {operation.path}")

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Change a file as the patch says, and move it where it says so."""
        arguments = {"path": in_workspace(operation.path), "encoding": "base64"}
        result = await self._session.call("read", arguments)
        if result.is_error:
            return ApplyPatchResult("failed", result.text)
        try:
            before = base64.b64decode(result.output).decode()
            after = apply_diff(before, operation.diff or "")
        except ValueError as error:  # no UTF-8, or no such lines
            return ApplyPatchResult("failed", f"{operation.path}: {error}")
        if operation.move_to is None or operation.move_to == operation.path:
            return await self._write(operation.path, after, f"updated {operation.path}")
        written = await self._write(operation.move_to, after, f"moved to {operation.move_to}")
        if written.status == "failed":
            return written
        removed = await self._remove(operation.path)
        return written if removed.status == "completed" else removed

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Remove a file."""
        return await self._remove(operation.path)

    async def _write(self, path: str, content: str, done: str) -> ApplyPatchResult:
        arguments = {"path": in_workspace(path), "content": content}
        return _patched(await self._session.call("write", arguments), done)

    async def _remove(self, path: str) -> ApplyPatchResult:
        command = f"rm -- {shlex.quote(in_workspace(path))}"
        return _patched(await self._session.call("bash", {"command": command}), f"deleted {path}")


def _patched(result: ToolResult, done: str) -> ApplyPatchResult:
    if result.is_error:
        return ApplyPatchResult("failed", result.text)
    return ApplyPatchResult("completed", done)


def function_tools(
    session: AsyncSession, names: Collection[str] | None = None
) -> list[FunctionTool]:
    """A session's tools as function tools, under our names and schemas, for any model.

    Args:
        session: Where they run.
        names: Which; None: all that its runner has.

    Raises:
        ConfigurationError: The runner lacks one of the tools named.
    """

    def tool(definition: dict[str, Any]) -> FunctionTool:
        name = definition["name"]

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            try:
                return shown(await session.call(name, arguments))
            except RunnerError as error:
                return f"{name}: {error}"

        return FunctionTool(
            name=name,
            description=definition["description"],
            params_json_schema=definition["input_schema"],
            on_invoke_tool=invoke,
            # Our schemas have optional properties, which the strict mode does not know.
            strict_json_schema=False,
        )

    return [tool(definition) for definition in definitions(session, names)]


def shown(result: ToolResult) -> Any:
    """What the model is shown of a result. The text of an error says that it is one."""
    if not result.blocks:
        return result.text
    parts: list[Any] = [ToolOutputText(text=result.text)] if result.text else []
    for block in result.blocks:
        url = f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
        if block.media_type.startswith("image/"):
            parts.append(ToolOutputImage(image_url=url))
        else:
            parts.append(ToolOutputFileContent(file_data=url, filename="document.pdf"))
    return parts
