"""What a rule looks at and how: the call as JSON, regular expressions, conditions.

Nothing here knows the file format, or which rule wins. A new kind of rule is a new
`Condition`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import re2

from runner.helper.watch import fold
from runner.policy.acts import SCRIPT, acts, beside, otherwise

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


def exactly(canonical: str) -> str:
    """The pattern for one call's JSON and no other."""
    return f"^{re.escape(canonical)}$"


class NotJson(ValueError):
    """The arguments of a call have no JSON form in UTF-8."""


class Subject:
    """A call as the rules see it. What only few rules look at is made when it is asked for."""

    __slots__ = (
        "_acts",
        "_canonical",
        "_guises",
        "_json",
        "_resolved",
        "_texts",
        "_variants",
        "arguments",
        "paths",
        "tool",
    )

    def __init__(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        canonical: str | None = None,
        resolved: str | None = None,
    ):
        """The call of this tool with these arguments.

        Args:
            tool: The tool's name, in any case.
            arguments: Its decoded input, in the order of its schema.
            canonical: The same as JSON, from whoever has made it of them already.
            resolved: Where the call's path leads in the container; None where nobody asked.

        Raises:
            NotJson: The arguments can't be written as JSON.
        """
        self.tool = tool.casefold()
        self.arguments = arguments
        self._canonical = canonical
        self._json: bytes | None = None
        if canonical is None:
            try:
                self._json = canonical_json(arguments).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise NotJson(str(error)) from error
        self.paths = _paths(arguments.get(PATH), resolved)
        """As it was given, normalised, and as it was resolved, in UTF-8; none without a path."""
        self._resolved = resolved
        self._texts: tuple[bytes, ...] | None = None
        self._guises: tuple[bytes, ...] | None = None
        self._acts: tuple[Self, ...] | None = None
        self._variants: tuple[Self, ...] | None = None

    @property
    def acts(self) -> tuple[Self, ...]:
        """The calls in plain words that this one comes to; none where its own are plain."""
        if self._acts is None:
            self._acts = tuple(
                type(self)(act.tool, act.arguments, canonical_json(act.written), self._resolved)
                for act in acts(self.tool, self.arguments)
            )
            for act in self._acts:
                act._acts = ()
        return self._acts

    @property
    def variants(self) -> tuple[Self, ...]:
        """The call with another script, then with another of each thing that changes its meaning.

        None where there is no such argument.
        """
        if self._variants is None:
            names = beside(self.tool, self.arguments)
            self._variants = tuple(
                type(self)(self.tool, otherwise(self.arguments, name), None, self._resolved)
                for name in ((SCRIPT, *names) if names else ())
            )
        return self._variants

    @property
    def json(self) -> bytes:
        """The call as canonical JSON in UTF-8: perhaps megabytes, so made once, if at all."""
        if self._json is None:
            self._json = (self._canonical or "").encode(errors="backslashreplace")
        return self._json

    @property
    def texts(self) -> tuple[bytes, ...]:
        """Every text in the arguments, however deep, names included."""
        if self._texts is None:
            self._texts = tuple(text.encode() for text in _texts(self.arguments))
        return self._texts

    @property
    def guises(self) -> tuple[bytes, ...]:
        """The paths, and what lax file systems take them for: a refusal is meant for these, too."""
        if self._guises is None:
            folded = (fold(path.decode()).encode() for path in self.paths)
            self._guises = tuple(dict.fromkeys((*self.paths, *folded)))
        return self._guises


PATH = "path"
"""The argument that rules for paths look at, whichever tool it is."""


def _paths(given: object, resolved: str | None) -> tuple[bytes, ...]:
    if not isinstance(given, str):
        return ()
    written = normalise(given) if given.startswith("/") else given
    paths = (written,) if resolved is None or resolved == written else (written, resolved)
    return tuple(path.encode() for path in paths)


_ENCODED = re.compile(r"%(?:25)*(?:2e|2f|5c|c0%(?:25)*a[ef]|e0%(?:25)*80)", re.IGNORECASE)
"""A dot, a slash or a backslash as URLs write them, twice encoded or in an illegal form too."""


def looks_encoded(path: bytes) -> bool:
    """Whether a path holds what some program might decode to another one. Nothing here does."""
    return b"%" in path and _ENCODED.search(path.decode()) is not None


def normalise(path: str) -> str:
    """An absolute path without `.`, `..` and doubled slashes, whatever is or isn't there.

    A `..` takes away the name before it, as for a directory that is no link. What the path
    leads to where it is one, only the container knows.
    """
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, inner in value.items():
                yield from _texts(key)
                yield from _texts(inner)
        case list() | tuple():
            for inner in value:
                yield from _texts(inner)


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

    @property
    def regex(self) -> str:
        """Its text."""
        return self.text

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

    def is_exactly(self, subject: Subject) -> bool:
        """Whether the pattern is `exactly` this call, which it then means as it is."""
        text, json = self.pattern.text, subject.json
        return len(text) > len(json) // 4 and text == exactly(json.decode())


@dataclass(frozen=True, slots=True)
class AnyTextMatches:
    """Holds where the pattern is found in any text of the arguments, decoded."""

    pattern: Pattern

    def holds(self, subject: Subject, /) -> bool:
        """Whether it is found."""
        return any(self.pattern.found_in(text) for text in subject.texts)


@dataclass(frozen=True, slots=True)
class FieldMatches:
    """Holds where the pattern is found in one argument: its text, or its JSON if it is none."""

    name: str
    """Dots lead into nested ones."""
    pattern: Pattern

    def holds(self, subject: Subject, /) -> bool:
        """Whether the argument is there and the pattern found in it."""
        value: Any = subject.arguments
        for name in self.name.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return False
            value = value[name]
        text = value if isinstance(value, str) else _encode(value)
        return self.pattern.found_in(text.encode())


class PathTest(Protocol):
    """A pattern or a glob."""

    @property
    def text(self) -> str:
        """As it was written."""

    @property
    def regex(self) -> str:
        """The same as a regular expression that is searched for."""

    def found_in(self, text: bytes, /) -> bool:
        """Whether it fits."""


@dataclass(frozen=True, slots=True)
class PathMatches:
    """Holds for a call with a path that fits, as it was given and as the container sees it.

    To be allowed, both have to fit; to be refused or asked about, either, in any letter case.
    """

    test: PathTest
    both: bool

    def holds(self, subject: Subject, /) -> bool:
        """Whether it fits."""
        if not subject.paths:
            return False
        if self.both:
            return all(self.test.found_in(path) for path in subject.paths)
        return any(self.test.found_in(path) for path in subject.guises)
