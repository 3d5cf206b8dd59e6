"""What a rule looks at and how: the call as JSON, regular expressions, conditions.

Nothing here knows the file format, or which rule wins. A new kind of rule is a new
`Condition`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import re2

MAX_PATTERN_MEMORY_BYTES = 8 * 1024**2
"""The most that one pattern may take, program and caches together: RE2's own default."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def canonical_json(arguments: Mapping[str, Any]) -> str:
    """The arguments as compact JSON in their own order, text beyond ASCII as it is.

    Raises:
        TypeError: They hold what JSON has no form for.
        ValueError: They hold NaN, an infinity, or themselves.
        RecursionError: They are nested too deeply.
    """
    return _encode(arguments if isinstance(arguments, dict) else dict(arguments))


class NotJson(ValueError):
    """The arguments of a call have no JSON form in UTF-8."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A call as the rules see it."""

    tool: str
    """Without regard to case."""
    arguments: Mapping[str, Any]
    json: bytes
    """Canonical JSON in UTF-8."""

    @classmethod
    def of(cls, tool: str, arguments: Mapping[str, Any], canonical: str | None = None) -> Self:
        """The call of this tool with these arguments, whose canonical JSON may be known.

        Raises:
            NotJson: The arguments can't be written as JSON.
        """
        try:
            text = (canonical_json(arguments) if canonical is None else canonical).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise NotJson(str(error)) from error
        return cls(tool.casefold(), arguments, text)


class Condition(Protocol):
    """Something that holds for a call or does not. Pure, and safe to use from many threads."""

    def holds(self, subject: Subject, /) -> bool:
        """Whether it holds for this call."""


class PatternError(ValueError):
    """A regular expression that can't be used; the text says why and what to write instead."""


_ADVICE = (
    ("invalid perl operator: (?=", "RE2 has no look-ahead"),
    ("invalid perl operator: (?!", "RE2 has no look-ahead; what must not match is a deny rule"),
    ("invalid perl operator: (?<", "RE2 has no look-behind"),
    ("invalid escape sequence: \\Z", "the end of the text is \\z"),
    ("invalid escape sequence: \\1", "RE2 has no references back to a group"),
    ("no argument for repetition operator: *", "anything at all is .*"),
    ("pattern too large", "make several rules of it, or use smaller counts"),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression in RE2's syntax, searched for anywhere in a text.

    Time is linear in the text whatever the pattern.
    """

    text: str
    _compiled: Any = field(compare=False, repr=False)

    @classmethod
    def compile(cls, text: str, *, memory_bytes: int = MAX_PATTERN_MEMORY_BYTES) -> Self:
        r"""Compile `text`, to take no more than `memory_bytes` now and while it searches.

        Raises:
            PatternError: RE2 refuses it, or it uses `\C`, which Go's regexp does not have.
        """
        if _has_any_byte(text):
            raise PatternError("\\C is not supported: a single character is (?s:.)")
        options = re2.Options()
        options.max_mem = memory_bytes
        options.log_errors = False
        options.never_capture = True
        try:
            return cls(text, re2.compile(text, options=options))
        except re2.error as error:
            raise PatternError(_explain(error.args[0])) from None

    def found_in(self, text: bytes) -> bool:
        """Whether it matches anywhere in `text`, which is UTF-8."""
        return self._compiled.search(text) is not None


def _has_any_byte(pattern: str) -> bool:
    r"""Whether `\C` is used: RE2 takes it as any one byte, even half a character."""
    at = pattern.find("\\")
    while at >= 0:
        match pattern[at + 1 : at + 2]:
            case "C":
                return True
            case "Q":
                end = pattern.find("\\E", at + 2)
                if end < 0:
                    return False
                at = pattern.find("\\", end + 2)
            case _:
                at = pattern.find("\\", at + 2)
    return False


def _explain(complaint: str | bytes) -> str:
    text = complaint.decode(errors="replace") if isinstance(complaint, bytes) else complaint
    for start, advice in _ADVICE:
        if text.startswith(start):
            return f"{text} ({advice})"
    return text


@dataclass(frozen=True, slots=True)
class JsonMatches:
    """Holds where the pattern is found in the call's JSON."""

    pattern: Pattern

    def holds(self, subject: Subject, /) -> bool:
        """Whether the pattern is found."""
        return self.pattern.found_in(subject.json)
