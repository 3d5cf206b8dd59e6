"""The extended `bash`: a place to start in, variables, time, input, user; errors apart."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from runner.answers import RequestFailed
from runner.model import Outcome
from runner.sandbox import WORKSPACE
from runner.tools.base import (
    AbsolutePath,
    Effects,
    SystemText,
    Tool,
    ToolContext,
    ToolInput,
    failed,
    go_quote,
)
from runner.tools.outcomes import ran, render

_NO_PLACE = frozenset(
    {"not_found", "not_directory", "permission_denied", "name_too_long", "link_loop"}
)
"""Failures that a directory may be to blame for."""


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            quoted = go_quote(name)
            raise PydanticCustomError(
                "tool_input", "holds {name}, which can't be a variable", {"name": quoted}
            )
    return value


def without_nul(value: str) -> str:
    """Refuse what the operating system would take for the end of a text."""
    if "\0" in value:
        raise PydanticCustomError("tool_input", "contains a NUL byte")
    return value


Variables = Annotated[dict[str, str], AfterValidator(_variables)]
"""Variables of a program's environment."""


class BashInput(ToolInput):
    """The input of `bash`."""

    command: SystemText
    """The shell command to execute."""
    cwd: AbsolutePath = WORKSPACE
    """Absolute path of the directory to start in. Defaults to /workspace."""
    env: Variables = Field(default_factory=dict)
    """Environment variables on top of the session's."""
    timeout_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds until it is killed. Can only shorten the call's own limit, which is the default."""
    stdin: str = ""
    """Standard input. Defaults to none."""
    stdin_encoding: Literal["utf-8", "base64"] = "utf-8"
    """How stdin is given; base64 for any bytes."""
    separate_stderr: bool = False
    """Return standard error apart from standard output."""
    user: Annotated[str, AfterValidator(without_nul)] = ""
    """Name or number of the user to run as, where the session allows it."""

    @model_validator(mode="after")
    def _stdin_is_base64(self) -> Self:
        try:
            self.stdin_bytes()
        except binascii.Error as error:
            raise PydanticCustomError(
                "tool_input", "stdin is not base64: {why}", {"why": str(error)}
            ) from error
        except ValueError as error:
            raise PydanticCustomError("tool_input", "stdin is not base64") from error
        return self

    def stdin_bytes(self) -> bytes:
        """The standard input.

        Raises:
            ValueError: It is not in its encoding.
        """
        if self.stdin_encoding == "base64":
            return base64.b64decode(self.stdin, validate=True)
        return self.stdin.encode()


class BashTool(Tool):
    """Runs a shell command."""

    name = "bash"
    description = (
        "Execute a shell command via `/bin/sh -c`. Returns combined stdout+stderr with exit status."
    )
    input = BashInput
    effects = Effects(open_world=None)
    keeps_time = True
    """At its deadline it returns what the command wrote so far."""

    async def execute(self, context: ToolContext, input: BashInput, /) -> Outcome:
        """Run the command.

        `details` as for the `bash` of the five. With `separate_stderr` there are `stderr`, its
        text, bounded as `output` is; and, where they apply, `stderr_omitted_bytes`, and
        `undecodable_stderr_bytes` that are U+FFFD now.
        """
        timeout_s = context.call.timeout_s
        if input.timeout_s:
            timeout_s = min(timeout_s, input.timeout_s)
        try:
            result = await context.sandbox.run(
                input.command,
                deadline_s=min(context.deadline_s, timeout_s),
                cwd=input.cwd,
                env={**context.environment, **input.env},
                stdin=input.stdin_bytes() if input.stdin else None,
                output_limit_bytes=context.limits.output_limit_bytes,
                on_output=context.on_output,
                background=context.limits.background,
                watch=context.watch,
                errors_apart=input.separate_stderr,
                user=input.user or None,
            )
        except RequestFailed as failure:
            return not_started("bash", failure, input.cwd, input.user)
        outcome = ran("bash", result, timeout_s)
        if result.errors is None:
            return outcome
        text, cut, undecodable = render(
            result.errors,
            result.errors_head_bytes,
            result.errors_total_bytes,
            result.errors_total_lines,
        )
        details: Mapping[str, Any] = {**outcome.details, "stderr": text}
        if cut is not None:
            details = {**details, "stderr_omitted_bytes": cut.omitted_bytes}
        if undecodable:
            details = {**details, "undecodable_stderr_bytes": undecodable}
        return replace(outcome, details=details)


def not_started(name: str, failure: RequestFailed, cwd: str, user: str = "") -> Outcome:
    """The outcome of a tool whose shell could not be started.

    Args:
        name: The tool's.
        failure: What the sandbox said.
        cwd: Where it was to start.
        user: Who it was to be, where that was asked.
    """
    if user and failure.code in ("no_user", "permission_denied"):
        return failed(f"{name}: user {go_quote(user)}: {failure.detail}", failure.code)
    if cwd != WORKSPACE and failure.code in _NO_PLACE:
        return failed(f"{name}: chdir {cwd}: {failure.detail}", failure.code)
    return failed(f"{name}: fork/exec /bin/sh: {failure.detail}", failure.code)
