r"""Globs: for the name of one file, and for paths below a directory.

A name's glob is one of Go's `filepath.Match`, as the reference has it. A path's is made of
such, name by name, with what people expect of paths besides: `**` for any directories, `{a,b}`
for either, and `[!a-z]` beside `[^a-z]`. Everything that is matched is bytes.
"""

import itertools

from runner.helper.files import Failure

MAX_PATTERN_BYTES = 4096
MAX_ALTERNATIVES = 64
"""Globs that `{a,b}` may make of one; each is tried on every name."""
MAX_PARTS = 1024
"""Names and wildcards between slashes, in all alternatives: a walk remembers for each level of a
tree which of them are next."""
_MAX_BRACES = 256
"""As many may be taken apart until then, however they are nested."""

_MAX_KNOWN = 2048
"""Of equal states one is kept, for so many of them."""

States = frozenset[tuple[int, int]]
"""How far a path got, in each alternative of a `PathGlob`: the part that is next."""


class PathGlob:
    """A glob for paths below a directory, matched name by name as a walk goes down.

    `**` alone between slashes stands for any number of directories, and at the end for
    everything below. No other part matches a slash. A name that starts with a dot is a name
    like any other.

    Raises:
        Failure: `bad_glob`: it can't be read, is too large, or says where no walk goes: it
            starts with a slash, or has a `..`.
    """

    def __init__(self, glob: str):
        if len(glob.encode(errors="surrogatepass")) > MAX_PATTERN_BYTES:
            raise Failure("bad_glob", f"the pattern is longer than {MAX_PATTERN_BYTES} bytes")
        self._globs = [_parts(one) for one in _alternatives(glob)]
        if sum(map(len, self._globs)) > MAX_PARTS:
            raise Failure("bad_glob", f"the pattern has more than {MAX_PARTS} names, braces undone")
        self._known: dict[States, States] = {}
        self.start = self._closure({(number, 0) for number in range(len(self._globs))})

    def step(self, states: States, name: bytes) -> States:
        """Where a name further down leads; nowhere (empty) where nothing below can match."""
        after = set()
        for number, at in states:
            part = self._part(number, at)
            if part is None:
                continue
            if part is _ANY:
                after.add((number, at))
            elif part.matches(name):
                after.add((number, at + 1))
        return self._closure(after)

    def named(self, states: States, name: bytes) -> States:
        """The same where the glob says this very name, without a wildcard."""
        after = set()
        for number, at in states:
            part = self._part(number, at)
            if part is not None and part is not _ANY and part.literal == name:
                after.add((number, at + 1))
        return self._closure(after)

    def accepts(self, states: States) -> bool:
        """Whether what led here matches."""
        return any(at == len(self._globs[number]) for number, at in states)

    def leads_on(self, states: States) -> bool:
        """Whether something below may match."""
        return any(at < len(self._globs[number]) for number, at in states)

    def _part(self, number: int, at: int) -> "NameGlob | None":
        parts = self._globs[number]
        return parts[at] if at < len(parts) else None

    def _closure(self, states: set[tuple[int, int]]) -> States:
        """With those that `**` for no directory at all leads to; two of them never follow."""
        states |= {(number, at + 1) for number, at in states if self._part(number, at) is _ANY}
        found = frozenset(states)
        # Deep trees come to the same ones again and again, and keep them all.
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        return self._known.setdefault(found, found)


def _parts(glob: str) -> "list[NameGlob]":
    if glob.startswith("/"):
        raise Failure("bad_glob", "the pattern is for paths below the directory: no / comes first")
    parts: list[NameGlob] = []
    for part in glob.split("/"):
        if part == "..":
            raise Failure("bad_glob", "the pattern is for paths below the directory: no .. in it")
        if part == "**":
            if not parts or parts[-1] is not _ANY:
                parts.append(_ANY)
        elif part not in ("", "."):
            parts.append(NameGlob(part, bang=True))
    if not parts:
        raise Failure("bad_glob", "the pattern is empty")
    if parts[-1] is _ANY:
        parts.append(NameGlob("*"))  # below a directory, which itself is not
    return parts


def _alternatives(glob: str) -> list[str]:
    """The globs without braces that one with braces stands for."""
    found: list[str] = []
    waiting = [glob]
    for _ in range(_MAX_BRACES):
        if not waiting:
            return found
        glob = waiting.pop()
        start, inside, end = _braces(glob)
        if start < 0:
            found.append(glob)
        else:
            waiting += [glob[:start] + one + glob[end:] for one in inside]
        if len(found) + len(waiting) > MAX_ALTERNATIVES:
            break
    raise Failure("bad_glob", f"the pattern has more than {MAX_ALTERNATIVES} alternatives")


def _braces(glob: str) -> tuple[int, list[str], int]:
    """The first braces: where they start, what they choose from, where they end; -1 without."""
    start = -1
    depth = 0
    cuts: list[int] = []
    for at, character in _unquoted(glob):
        if character == "{":
            if depth == 0:
                start = at
                cuts = [at]
            depth += 1
        elif character == "," and depth == 1:
            cuts.append(at)
        elif character == "}" and depth:
            depth -= 1
            if depth == 0:
                cuts.append(at)
                inside = [glob[a + 1 : b] for a, b in itertools.pairwise(cuts)]
                return start, inside, at + 1
    if depth:
        raise Failure("bad_glob", "a { is not closed; for the character itself write \\{")
    return -1, [], -1


def _unquoted(glob: str) -> list[tuple[int, str]]:
    """The characters that may mean something: not behind a backslash, not in a class."""
    found = []
    at = 0
    while at < len(glob):
        if glob[at] == "\\":
            at += 1
        elif glob[at] == "[":
            end = glob.find("]", at + 2)
            at = end if end >= 0 else at
        else:
            found.append((at, glob[at]))
        at += 1
    return found


class NameGlob:
    r"""A glob of Go's `filepath.Match`, for names without a slash.

    `*` and `?`, classes such as `[a-z]` and `[^a-z]` (there is no `[!a-z]`), and `\` before
    a character that stands for itself. `?` and classes take a whole character, or one byte
    where the name is not UTF-8. As there, `*` counts bytes, so that a class may be tried
    from the middle of a character.

    Args:
        glob: The glob.
        bang: Take `[!a-z]` for `[^a-z]`, unlike Go.

    Raises:
        Failure: `bad_glob`.
    """

    def __init__(self, glob: str, *, bang: bool = False):
        self._glob = glob
        self._at = 0
        self._negations = ("^", "!") if bang else ("^",)
        self._chunks = [_Chunk(after_star=False)]
        while self._at < len(glob):
            character = self._take()
            if character == "*":
                if not (self._chunks[-1].after_star and self._chunks[-1].is_empty()):
                    self._chunks.append(_Chunk(after_star=True))
            elif character == "?":
                self._chunks[-1].add_class([], negated=True)
            elif character == "[":
                self._take_class()
            else:
                self._chunks[-1].add(self._take() if character == "\\" else character)
        self.literal = self._chunks[0].literal() if len(self._chunks) == 1 else None
        """The one name that it matches, if it has no wildcard."""

    def matches(self, name: bytes) -> bool:
        """Whether it matches all of a name."""
        for chunk in self._chunks:
            is_last = chunk is self._chunks[-1]
            starts = range(len(name) + 1) if chunk.after_star else (0,)
            if chunk.after_star and chunk.is_empty():
                return True
            for start in starts:
                end = chunk.end(name, start)
                if end >= 0 and (end == len(name) or not is_last):
                    name = name[end:]
                    break
            else:
                return False
        return not name

    def _take(self) -> str:
        if self._at == len(self._glob):
            raise Failure("bad_glob", "syntax error in pattern")
        self._at += 1
        return self._glob[self._at - 1]

    def _take_class(self) -> None:
        ranges: list[tuple[int, int]] = []
        negated = self._glob.startswith(self._negations, self._at)
        self._at += negated
        while not (ranges and self._glob.startswith("]", self._at)):
            low = high = self._take_class_character()
            if self._glob.startswith("-", self._at):
                self._at += 1
                high = self._take_class_character()
            ranges.append((ord(low), ord(high)))
        self._at += 1
        self._chunks[-1].add_class(ranges, negated)

    def _take_class_character(self) -> str:
        character = self._take()
        if character in "-]":
            raise Failure("bad_glob", "syntax error in pattern")
        return self._take() if character == "\\" else character


class _Chunk:
    """A part of a glob without a star in it."""

    def __init__(self, *, after_star: bool):
        self.after_star = after_star
        self._parts: list[bytes | tuple[list[tuple[int, int]], bool]] = []

    def is_empty(self) -> bool:
        return not self._parts

    def literal(self) -> bytes | None:
        """All of it, where it is nothing but text."""
        texts = [part for part in self._parts if isinstance(part, bytes)]
        return b"".join(texts) if len(texts) == len(self._parts) else None

    def add(self, character: str) -> None:
        if self._parts and isinstance(self._parts[-1], bytes):
            self._parts[-1] += character.encode()
        else:
            self._parts.append(character.encode())

    def add_class(self, ranges: list[tuple[int, int]], negated: bool) -> None:
        self._parts.append((ranges, negated))

    def end(self, name: bytes, at: int) -> int:
        """Where a match that starts at `at` ends, or -1 if there is none."""
        for part in self._parts:
            if isinstance(part, bytes):
                if not name.startswith(part, at):
                    return -1
                at += len(part)
            else:
                ranges, negated = part
                character, width = _character(name, at)
                if not width or any(low <= character <= high for low, high in ranges) == negated:
                    return -1
                at += width
        return at


def _character(name: bytes, at: int) -> tuple[int, int]:
    """The character that starts at a byte, and its width; U+FFFD and 1 where none does."""
    if at == len(name):
        return 0, 0
    for width in range(1, 5):
        try:
            return ord(name[at : at + width].decode()), width
        except UnicodeDecodeError:
            continue
    return 0xFFFD, 1


_ANY = NameGlob("**")
"""Stands for any directories; nothing else is this very object."""
