"""What the integrations share: words for what is missing, tools, paths, files of any size.

Refuses to know any framework.
"""

import base64
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from runner.client import AsyncSession
from runner.errors import ConfigurationError
from runner.model import ToolResult
from runner.sandbox import WORKSPACE
from runner.tools import Format

PIECE_BYTES = 1024**2
"""So much of a file goes into one call, whose input may have 2 MB and is base64."""

Call = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
"""Makes a call of a session: a tool and its arguments."""


def missing(extra: str, error: ImportError) -> ImportError:
    """The error for a framework that is not installed.

    Args:
        extra: The extra of this package that brings it.
        error: What its import said.
    """
    return ImportError(
        f"{error}: runner.integrations.{extra.replace('-', '_')} needs an extra:"
        f' pip install "rousseau-runner[{extra}]"',
        name=error.name,
    )


def require(session: AsyncSession, names: Iterable[str]) -> None:
    """See that a session's runner has these tools.

    Raises:
        ConfigurationError: It has not: it was opened without the extended set.
    """
    lacking = [name for name in names if session.tools.get(name) is None]
    if lacking:
        raise ConfigurationError(
            f"the runner has no tool {', '.join(map(repr, lacking))}:"
            ' open it with AsyncRunner(…, tools="extended")'
        )


def definitions(
    session: AsyncSession, names: Collection[str] | None, format: Format = "rousseau"
) -> list[dict[str, Any]]:
    """The definitions of a session's tools.

    Args:
        session: Whose.
        names: Which; None: all that its runner has.
        format: Whose model is to read them.

    Raises:
        ConfigurationError: The runner lacks one of the tools named.
    """
    require(session, names or ())
    return [
        definition
        for definition in session.tools.definitions(format)
        if names is None or definition["name"] in names
    ]


def in_workspace(path: str) -> str:
    """A path that may be relative to the workspace, as an absolute one."""
    return posixpath.join(WORKSPACE, path)


async def write_whole(call: Call, path: str, content: bytes) -> ToolResult:
    """Write a file, whatever its size; the result of the last call, or the first that failed.

    By `write`, and what is too large for one call by `bash`, piece by piece. Until the last of
    them the file has only a part of it.
    """
    first, *more = (
        base64.b64encode(content[at : at + PIECE_BYTES]).decode()
        for at in range(0, len(content) or 1, PIECE_BYTES)
    )
    result = await call("write", {"path": path, "content": first, "encoding": "base64"})
    for piece in more:
        if result.is_error:
            break
        append = f"cat >> {shlex.quote(path)}"
        arguments = {"command": append, "stdin": piece, "stdin_encoding": "base64"}
        result = await call("bash", arguments)
    return result


def failure_of(result: ToolResult) -> str:
    """Why a tool did not do it, as one word; see `runner.tools.base.failed`. Empty: not said."""
    return str(result.details.get("failure", ""))
