"""Words of a command line made into values: durations, sizes, variables, inputs of tools."""

import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import typer

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_NUMBER = r"(\d+(?:\.\d+)?)\s*"


def duration_s(text: str) -> float:
    """Seconds, from `90`, `1.5`, `500ms`, `2m`, `8h` or `1d`.

    Raises:
        typer.BadParameter: The text is something else.
    """
    match = re.fullmatch(_NUMBER + "([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _SECONDS:
        raise typer.BadParameter(f"{text!r} is not a time: write 90, 500ms, 2m or 8h")
    return float(match[1]) * _SECONDS[match[2]]


def moment(text: str) -> float:
    """Seconds since the epoch, from a time span, for so long ago, or a date and time of ISO 8601.

    One without a zone is in this machine's.

    Raises:
        typer.BadParameter: The text is neither.
    """
    try:
        return time.time() - duration_s(text)
    except typer.BadParameter:
        pass
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is no moment: write 2h or 3d for so long ago, or 2026-03-01T12:00"
        ) from None


def size_bytes(text: str) -> int:
    """Bytes, from `1048576`, `512m`, `1.5g` or `64MiB`; a k is 1024.

    Raises:
        typer.BadParameter: The text is something else.
    """
    match = re.fullmatch(_NUMBER + "([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size: write 1048576, 512m or 1g")
    return int(float(match[1]) * _BYTES[match[2]])


def directory(text: str) -> str:
    """A directory's name; whether it can be mounted is found out when it is.

    Raises:
        typer.BadParameter: It is empty, as an unset variable of a script is: not a way to
            say `.`.
    """
    if not text:
        raise typer.BadParameter("it names no directory; write . for this one")
    return text


def variables(words: Sequence[str]) -> dict[str, str]:
    """Variables, each from `NAME=VALUE`.

    Raises:
        typer.BadParameter: A word has no `=`, or its name is not a shell's.
    """
    found = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            raise typer.BadParameter(
                f"{word!r} is not NAME=VALUE; nothing is taken from your own environment",
                param_hint="--env",
            )
        found[name] = value
    return found


def tool_input(word: str) -> bytes:
    """The input of a tool: the word itself, a file's content for `@FILE`, standard input for `-`.

    Raises:
        typer.BadParameter: The file can't be read.
    """
    from runner.tools import MAX_INPUT_BYTES

    enough = MAX_INPUT_BYTES + 1  # for the tool to see that it is too much
    if word == "-":
        return sys.stdin.buffer.read(enough)
    if word.startswith("@"):
        try:
            with Path(word[1:]).open("rb") as file:
                return file.read(enough)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise typer.BadParameter(str(error), param_hint="INPUT") from error
    # What is not UTF-8 came as surrogates; the decoder shall see the bytes and say so.
    return word.encode("utf-8", "surrogateescape")


def ago(seconds: float) -> str:
    """A time span for people: its two largest units, such as `3h12m`."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for name, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or name == "s":
            parts.append(f"{count}{name}")
    return "".join(parts[:2])


def local_time(at: float, now: float | None = None) -> str:
    """A moment for people, by this machine's clock; with `now`, how far that is from it, too."""
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    if now is None:
        return local
    return f"{local} (in {ago(at - now)})" if at > now else f"{local} ({ago(now - at)} ago)"


def size(count: float) -> str:
    """A size for people, such as `221 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
