"""What a call of the extended tools does, said as the five would have it said.

A `multi_edit` is edits, base64 is the bytes that it stands for. Rules were written for the plain
words, and are asked about those. Owns the plain words, and which arguments beside a script change
what its words mean; which rule then applies is not decided here.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runner.policy.programs import is_harmless_variable

WORKSPACE = "/workspace"
"""Where each script starts, and what may be written."""
SCRIPT = "command"
"""The argument that is a shell script, whichever tool it is."""
DIRECTORY = "cwd"
VARIABLES = "env"
USER = "user"
"""Arguments that say where and as whom the script starts; tools that have none don't."""
STARTERS = frozenset({"bash", "process_start"})
"""The tools that have these."""
_STRANGE = "zqxjkv Z.q:x,j/7 -k;\"'$(`|"
"""A text that no rule means."""


class Act(NamedTuple):
    """A call in plain words."""

    tool: str
    arguments: Mapping[str, Any]
    written: Mapping[str, Any]
    """The arguments as JSON shows them. Names of variables are anybody's choice: as names of
    properties they could pass for those of the tool."""


def acts(tool: str, arguments: Mapping[str, Any]) -> tuple[Act, ...]:
    """What a call does; nothing where its own words are plain.

    Args:
        tool: The tool's name in lower case.
        arguments: Its input.
    """
    if tool == "multi_edit":
        return tuple(_edits(arguments))
    if tool == "write":
        plain = _decoded(arguments, "content", "encoding")
    elif tool in STARTERS:
        plain = _decoded(arguments, "stdin", "stdin_encoding")
    else:
        return ()
    written = plain
    variables = plain.get(VARIABLES)
    if tool in STARTERS and isinstance(variables, Mapping) and variables:
        written = {**plain, VARIABLES: [f"{name}={value}" for name, value in variables.items()]}
    return () if written is arguments else (Act(tool, plain, written),)


def _edits(arguments: Mapping[str, Any]) -> Sequence[Act]:
    edits = arguments.get("edits")
    if not isinstance(edits, list | tuple):
        return ()
    rest = {name: value for name, value in arguments.items() if name != "edits"}
    plain = [{**rest, **edit} for edit in edits if isinstance(edit, Mapping)]
    return [Act("edit", edit, edit) for edit in plain]


def _decoded(arguments: Mapping[str, Any], name: str, encoding: str) -> Mapping[str, Any]:
    """The arguments with a text for its base64; the same where there is none."""
    value = arguments.get(name)
    if arguments.get(encoding) != "base64" or not isinstance(value, str):
        return arguments
    try:
        content = base64.b64decode(value)
    except (binascii.Error, ValueError):  # the tool refuses it, too
        return arguments
    text = content.decode(errors="replace")
    return {
        key: text if key == name else other for key, other in arguments.items() if key != encoding
    }


def beside(tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments that change what the same script does."""
    if tool not in STARTERS:
        return ()
    names = []
    directory, variables = arguments.get(DIRECTORY), arguments.get(VARIABLES)
    if directory is not None and directory != WORKSPACE:
        names.append(DIRECTORY)
    if isinstance(variables, Mapping) and not all(
        isinstance(value, str) and is_harmless_variable(name, value)
        for name, value in variables.items()
    ):
        names.append(VARIABLES)
    if arguments.get(USER):
        names.append(USER)
    return tuple(names)


def otherwise(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The arguments with another value for one of them, which no rule means."""
    return {**arguments, name: {_STRANGE: _STRANGE} if name == VARIABLES else _STRANGE}
