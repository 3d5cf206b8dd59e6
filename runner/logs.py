"""Log events for operators, and text of strangers made safe to look at.

Owns how an event is written (console or JSON lines, through structlog) and what a person
is shown of characters that a terminal would obey or hide. Importing it does nothing:
entry points call `configure`. What must not get lost is the audit's, in the store; a log
event is for whoever watches.

Without `configure` events go to the standard library's logger `runner`, so that a program
that uses the library sees them where it sees everybody else's.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, Protocol, TextIO

Format = Literal["console", "json"]
Level = Literal["debug", "info", "warning", "error"]

_LEVELS: dict[Level, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_HIDDEN = (
    # Controls, C0 without tab and newline, DEL, C1: a terminal obeys them.
    (0x0000, 0x0008),
    (0x000B, 0x001F),
    (0x007F, 0x009F),
    # Soft hyphen, grapheme joiner, and the marks that surround digits of other scripts.
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x0600, 0x0605),
    (0x061C, 0x061C),
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    # Fillers, inherent vowels, Mongolian selectors: letters that nobody sees.
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    # Zero width and direction; line and paragraph separators; embeddings and overrides.
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    # Joiners, invisible operators, isolates.
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    # Lone surrogates can't even be written.
    (0xD800, 0xDFFF),
    # Variation selectors: sixteen different nothings.
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    # Tags, a whole invisible ASCII, and more variation selectors.
    (0xE0000, 0xE0FFF),
)
"""First and last of what `visible` escapes: the categories Cc, Cf, Cs, Zl and Zp, and the
rest of Default_Ignorable_Code_Point, reserved ones included so that a later Unicode does
not open a gap. A table, since asking `unicodedata` about every character takes 0.1 s."""


def _escape(code: int) -> str:
    if code == 0x0D:
        return "\\r"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_PATTERN = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _HIDDEN)}]")
_ASCII = {
    code: _escape(code) for first, last in _HIDDEN for code in range(first, last + 1) if code < 0x80
}


def visible(text: str) -> str:
    r"""Show what a terminal would obey or hide as an escape: `\x1b`, `\r`, `\u202e`.

    Everything else stays as it is, newlines, tabs and backslashes too: text without such
    characters is returned unchanged, and so a reader can't tell an escape from the same
    letters written out. Linear in the length.
    """
    # `translate` is fifty times faster than the pattern on ASCII, and four times slower on
    # anything else.
    if text.isascii():
        return text.translate(_ASCII)
    return _PATTERN.sub(lambda match: _escape(ord(match[0])), text)


class _Write(Protocol):
    def __call__(self, event: str, level: Level, fields: Mapping[str, Any]) -> None: ...


class Logger:
    """Logs events: a name, such as `tool.denied`, and facts as keywords.

    `exc_info=True` adds the traceback of the exception that is being handled. Facts called
    `event`, `level` or `timestamp` are lost: every event has those.
    """

    __slots__ = ()

    def debug(self, event: str, /, **facts: Any) -> None:
        """Log what only helps to find a mistake."""
        _write(event, "debug", facts)

    def info(self, event: str, /, **facts: Any) -> None:
        """Log what is as it should be."""
        _write(event, "info", facts)

    def warning(self, event: str, /, **facts: Any) -> None:
        """Log what somebody should know of."""
        _write(event, "warning", facts)

    def error(self, event: str, /, **facts: Any) -> None:
        """Log what somebody should do something about."""
        _write(event, "error", facts)

    def exception(self, event: str, /, **facts: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        _write(event, "error", {**facts, "exc_info": True})


log = Logger()
"""The one there is: `from runner.logs import log`."""


def bind(**facts: Any) -> None:
    """Add facts to every event that this task, and those it starts, log from here on.

    Where `configure` was called, that is: they do not reach the standard library's logger.
    """
    import structlog  # here, since it takes its time: see `configure`

    structlog.contextvars.bind_contextvars(**facts)


def configure(
    format: Format,
    level: Level = "info",
    stream: TextIO | None = None,
) -> None:
    """Write this process's events of at least `level` to `stream`, one a line.

    Args:
        format: `console` for people, `json` for programs: ASCII only, everything that is
            not printable escaped.
        level: The least that is written.
        stream: None for standard error as it is when the first event is written.

    structlog is imported with the first event that is written: it takes 0.1 s, which most
    command lines need not wait for. Its configuration is the process's, so events that a
    tool of the user logs through structlog come out alike from then on.
    """
    least = _LEVELS[level]

    def write(event: str, level: Level, fields: Mapping[str, Any]) -> None:
        if _LEVELS[level] < least:
            return
        global _write
        _write = _structlog(format, least, stream)
        _write(event, level, fields)

    global _write
    _write = write


def _structlog(format: Format, least: int, stream: TextIO | None) -> _Write:
    import structlog  # here, since it takes its time: see `configure`

    render = _render_json if format == "json" else _render_console
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=stream or sys.stderr),
        cache_logger_on_first_use=False,
    )
    logger = structlog.get_logger()

    def write(event: str, level: Level, fields: Mapping[str, Any]) -> None:
        logger.bind(**fields).log(_LEVELS[level], event)

    return write


def _standard(event: str, level: Level, fields: Mapping[str, Any]) -> None:
    logger = logging.getLogger("runner")
    number = _LEVELS[level]
    if logger.isEnabledFor(number):
        facts = dict(fields)
        exc_info = facts.pop("exc_info", None)
        text = " ".join((event, *(f"{name}={_value(value)}" for name, value in facts.items())))
        logger.log(number, "%s", _one_line(text), exc_info=exc_info)


_write: _Write = _standard


def _render_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    line = json.dumps(event, default=repr)
    # The one control character that JSON lets through. It stands in strings only.
    return line.replace("\x7f", "\\u007f")


def _render_console(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    time = str(event.pop("timestamp"))
    level = str(event.pop("level"))
    name = str(event.pop("event"))
    exception = event.pop("exception", None)
    facts = (f"{key}={_value(value)}" for key, value in event.items())
    line = _one_line(" ".join((time, f"{level:7}", name, *facts)))
    # A traceback is many lines by nature; those that follow are set in, so that none passes
    # for an event.
    return line if exception is None else line + _set_in(str(exception))


def _value(value: Any) -> str:
    """Bare where it reads as one word, else as JSON or Python writes it."""
    if not isinstance(value, str):
        return repr(value)
    if value and not _NOT_A_WORD.search(value):
        return value
    return json.dumps(value, ensure_ascii=False)


_NOT_A_WORD = re.compile(r"[\s\"'=\\]")


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _set_in(text: str) -> str:
    return "".join(f"\n    {line}" for line in visible(text).split("\n"))
