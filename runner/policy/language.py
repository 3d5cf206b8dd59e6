r"""Where a regular expression can be found: a decision procedure that errs to one side only.

The question is whether a pattern can be found in any text of a certain shape, such as the
JSON of a `bash` call. Both are read here as regular expressions in RE2's syntax, turned
into automata, and walked in step: if no walk reaches the pattern's end, no text of that
shape holds it.

What this module can't express exactly it replaces by something larger: every character
beyond ASCII is one letter, `\b` always holds, a count above `COPIES` has no upper bound.
So "can't be found" is proved, and "can be found" means "as far as this can tell". What it
does not know at all it refuses (`Beyond`), and the caller says nothing.

Texts are taken to hold no control characters, as compact JSON holds none; hence `^` and `$`
mean the same with and without the `m` flag. Matching is not done here, RE2 does that.
"""

import itertools
import re
import string
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, assert_never

COPIES = 16
"""How often a counted repetition is written out; beyond it the count is taken as open."""
MAX_NESTING = 40
MAX_STATES = 4_000

OTHER = 1 << 128
"""The letter that stands for every character beyond ASCII."""
ANY = (OTHER << 1) - 1


class Beyond(Exception):
    """The pattern uses what this module does not know, or takes too long to be judged."""


class Budget:
    """Steps that may still be taken, shared by several questions."""

    def __init__(self, steps: int):
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take that many.

        Raises:
            Beyond: There are not as many left.
        """
        self.left -= steps
        if self.left < 0:
            raise Beyond("out of steps")


# --- characters: a set of letters is an integer, bit n for ASCII n, the highest for the rest


def _letters(characters: Iterable[str]) -> int:
    mask = 0
    for character in characters:
        mask |= _letter(ord(character))
    return mask


def _letter(code: int) -> int:
    return 1 << code if code < 128 else OTHER


def _span(low: int, high: int) -> int:
    mask = OTHER if high > 127 else 0
    if low < 128:
        mask |= (1 << (min(high, 127) + 1)) - (1 << low)
    return mask


class Letters(NamedTuple):
    """A set of characters from above and from below.

    `over` may hold too much, `under` too little. Only `under` may be taken from the alphabet.
    """

    over: int
    under: int

    @classmethod
    def exact(cls, mask: int) -> "Letters":
        """These, as far as they are ASCII; of the others it is not known which."""
        return cls(mask, mask & ~OTHER)

    def __or__(self, other: object) -> "Letters":
        if not isinstance(other, Letters):
            return NotImplemented
        return Letters(self.over | other.over, self.under | other.under)

    def negated(self) -> "Letters":
        """All others."""
        return Letters(ANY & ~self.under, ANY & ~OTHER & ~self.over)

    def folded(self) -> "Letters":
        """Without regard to case. Beyond ASCII, U+212A is a k and U+017F is an s."""
        over = _fold_ascii(self.over)
        if self.over & OTHER:
            over |= _FOLDS_BEYOND
        if over & _FOLDS_BEYOND:
            over |= OTHER
        return Letters(over, _fold_ascii(self.under))


def _fold_ascii(mask: int) -> int:
    lower = mask & _LOWER
    upper = mask & _UPPER
    return mask | lower >> 32 | upper << 32


_LOWER = _letters(string.ascii_lowercase)
_UPPER = _letters(string.ascii_uppercase)
_FOLDS_BEYOND = _letters("kKsS")
_UNKNOWN = Letters(ANY, 0)
_NEWLINE = _letters("\n")

_DIGIT = _letters(string.digits)
_WORD = _LOWER | _UPPER | _DIGIT | _letters("_")
_PERL = {
    "d": Letters.exact(_DIGIT),
    "w": Letters.exact(_WORD),
    "s": Letters.exact(_letters("\t\n\f\r ")),
}
_POSIX = {
    "alnum": _LOWER | _UPPER | _DIGIT,
    "alpha": _LOWER | _UPPER,
    "ascii": _span(0, 127),
    "blank": _letters("\t "),
    "cntrl": _span(0, 31) | 1 << 127,
    "digit": _DIGIT,
    "graph": _span(33, 126),
    "lower": _LOWER,
    "print": _span(32, 126),
    "punct": _letters(string.punctuation),
    "space": _letters("\t\n\v\f\r "),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _letters(string.hexdigits),
}
_CONTROLS = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}


# --- syntax


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    mask: int


class Edge(Enum):
    """Where in the text we have to be."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class Series:
    """One after the other."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """As often as that; `most` None is without limit."""

    item: "Node"
    least: int
    most: int | None


Node = Chars | Edge | Series | Choice | Repeat
NOTHING = Series(())


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the parts that `|` separates at the top of a pattern."""

    text: str
    node: Node
    open_ended: bool
    """Whether a match stays a match whatever follows it: no `$`, `\\z`, `\\b` or `\\B`."""


def alternatives(pattern: str, budget: Budget) -> tuple[Alternative, ...]:
    """The top-level alternatives of a pattern that RE2 has accepted.

    Raises:
        Beyond: The pattern can't be read here.
    """
    budget.spend(len(pattern))
    return _Reader(pattern).pattern()


def beginnings(pattern: str, budget: Budget) -> tuple[str, ...]:
    """Texts with one of which every match starts: the plain part of each way to match.

    A shorter text is as true, so each ends where it gets difficult.

    Raises:
        Beyond: The pattern can't be read here.
    """
    parts = [part.node for part in alternatives(pattern, budget)]
    return tuple(_beginnings(Choice(tuple(parts)), budget))


def _beginnings(node: Node, budget: Budget) -> dict[str, bool]:
    """As `beginnings`, each with whether it is all of its way to match."""
    match node:
        case Chars(mask):
            is_one = mask.bit_count() == 1 and mask != OTHER
            return {chr(mask.bit_length() - 1): True} if is_one else {"": False}
        case Edge():
            return {"": True}
        case Choice(items):
            found: dict[str, bool] = {}
            for item in items:
                for text, is_all in _beginnings(item, budget).items():
                    found[text] = found.get(text, True) and is_all
            return found
        case Series(items):
            found = {"": True}
            for item in items:
                more = _beginnings(item, budget)
                budget.spend(len(found) * len(more))
                found = {text + rest: is_all for text in found for rest, is_all in more.items()}
                if not all(found.values()):
                    return dict.fromkeys(found, False)
            return found
        case Repeat(item, least, most):
            if least == 0:
                return {"": False}
            is_once = least == most == 1
            return {text: is_all and is_once for text, is_all in _beginnings(item, budget).items()}
    assert_never(node)


_COUNT = re.compile(r"\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}")
_LOOKS_LIKE_COUNT = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
_GROUP_NAME = re.compile(r"\(\?P?<\w+>")
_GROUP_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_UNARY = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Reader:
    """A recursive-descent reader of RE2's syntax. One use."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self.fold = False
        self.dot_all = False
        self.depth = 0
        self.open_ended = True

    def pattern(self) -> tuple[Alternative, ...]:
        found = []
        while True:
            begin, self.open_ended = self.at, True
            node = self.series()
            found.append(Alternative(self.text[begin : self.at], node, self.open_ended))
            if self.at == len(self.text):
                return tuple(found)
            if self.text[self.at] != "|":
                raise Beyond("a parenthesis that nothing opens")
            self.at += 1

    def choice(self) -> Node:
        items = [self.series()]
        while self.text.startswith("|", self.at):
            self.at += 1
            items.append(self.series())
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def series(self) -> Node:
        items: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            more = self.atom()
            if counts := self.counts():
                if not more:
                    raise Beyond("a repetition of flags")
                more[-1] = Repeat(more[-1], *counts)
            items += more
        return items[0] if len(items) == 1 else Series(tuple(items))

    def counts(self) -> tuple[int, int | None] | None:
        """What follows an atom: `*`, `+`, `?` or a count, and the `?` that makes it lazy."""
        character = self.text[self.at : self.at + 1]
        if character in _UNARY:
            found = _UNARY[character]
            self.at += 1
        elif count := _COUNT.match(self.text, self.at):
            least = int(count[1])
            most = least if count[2] is None else int(count[3]) if count[3] else None
            found = (least, most)
            self.at = count.end()
        elif _LOOKS_LIKE_COUNT.match(self.text, self.at):
            raise Beyond("a count with a leading zero")
        else:
            return None
        if self.text.startswith("?", self.at):
            self.at += 1
        return found

    def atom(self) -> list[Node]:
        """The next atom, or several literals that one piece of syntax stands for."""
        character = self.text[self.at]
        match character:
            case "(":
                return self.group()
            case "[":
                return [Chars(self.bracket())]
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                raise Beyond("a repetition of nothing")
        self.at += 1
        match character:
            case "^":
                return [Edge.START]
            case "$":
                self.open_ended = False
                return [Edge.END]
            case ".":
                return [Chars(ANY if self.dot_all else ANY & ~_NEWLINE)]
        return [self.literal(ord(character))]

    def literal(self, code: int) -> Node:
        return Chars(self.cased(Letters.exact(_letter(code))).over)

    def cased(self, letters: Letters) -> Letters:
        """As the flags have it. RE2 folds every part of a class before it negates that part."""
        return letters.folded() if self.fold else letters

    def group(self) -> list[Node]:
        saved = self.fold, self.dot_all
        if name := _GROUP_NAME.match(self.text, self.at):
            self.at = name.end()
        elif flags := _GROUP_FLAGS.match(self.text, self.at):
            self.at = flags.end()
            self.set_flags(flags[1], True)
            self.set_flags(flags[2] or "", False)
            if flags[3] == ")":
                return []  # for the rest of the group that we are in
        elif self.text.startswith("(?", self.at):
            raise Beyond("an unknown kind of group")
        else:
            self.at += 1
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise Beyond("groups in groups in groups")
        node = self.choice()
        if not self.text.startswith(")", self.at):
            raise Beyond("a group that nothing closes")
        self.at += 1
        self.depth -= 1
        self.fold, self.dot_all = saved
        return [node]

    def set_flags(self, flags: str, on: bool) -> None:
        if "i" in flags:
            self.fold = on
        if "s" in flags:
            self.dot_all = on

    def escape(self) -> list[Node]:
        kind = self.text[self.at + 1 : self.at + 2]
        match kind:
            case "A":
                self.at += 2
                return [Edge.START]
            case "z":
                self.at += 2
                self.open_ended = False
                return [Edge.END]
            case "b" | "B":
                self.at += 2
                self.open_ended = False
                return [NOTHING]
            case "Q":
                return self.quoted()
        if letters := self.letter_class():
            return [Chars(letters.over)]
        return [self.literal(self.escaped_code())]

    def quoted(self) -> list[Node]:
        end = self.text.find("\\E", self.at + 2)
        body = self.text[self.at + 2 : end if end >= 0 else len(self.text)]
        if not body:
            raise Beyond("a quotation of nothing")
        self.at = end + 2 if end >= 0 else len(self.text)
        return [self.literal(ord(character)) for character in body]

    def letter_class(self) -> Letters | None:
        r"""A class such as `\d` or `\pL` at this place, if there is one."""
        kind = self.text[self.at + 1 : self.at + 2]
        if kind and kind in "dDwWsS":
            self.at += 2
            letters = self.cased(_PERL[kind.lower()])
            return letters.negated() if kind.isupper() else letters
        if kind and kind in "pP":
            if self.text.startswith("{", self.at + 2):
                end = self.text.find("}", self.at)
                if end < 0:
                    raise Beyond("an unfinished class name")
                self.at = end + 1
            else:
                self.at += 3
            return _UNKNOWN
        return None

    def escaped_code(self) -> int:
        """The character that a backslash and what follows it stand for."""
        kind = self.text[self.at + 1 : self.at + 2]
        if kind in _CONTROLS:
            self.at += 2
            return _CONTROLS[kind]
        for form in (_HEX, _HEX_BRACED, _OCTAL):
            if found := form.match(self.text, self.at):
                self.at = found.end()
                return int(found[1], 8 if form is _OCTAL else 16)
        if not kind or (kind.isascii() and kind.isalnum()) or not kind.isascii():
            raise Beyond("an unknown escape")
        self.at += 2
        return ord(kind)

    def bracket(self) -> int:
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        letters = Letters(0, 0)
        first = True
        while first or not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise Beyond("a class that nothing closes")
            first = False
            letters |= self.bracket_item()
        self.at += 1
        return (letters.negated() if negated else letters).over

    def bracket_item(self) -> Letters:
        if self.text.startswith("[:", self.at) and (end := self.text.find(":]", self.at)) >= 0:
            name = self.text[self.at + 2 : end]
            if name.removeprefix("^") not in _POSIX:
                raise Beyond("an unknown class name")
            self.at = end + 2
            letters = self.cased(Letters.exact(_POSIX[name.removeprefix("^")]))
            return letters.negated() if name.startswith("^") else letters
        if self.text.startswith("\\", self.at) and (found := self.letter_class()):
            return found
        low = high = self.bracket_code()
        if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
            self.at += 1
            high = self.bracket_code()
        return self.cased(Letters.exact(_span(low, high)))

    def bracket_code(self) -> int:
        if self.at >= len(self.text):
            raise Beyond("a class that nothing closes")
        if self.text[self.at] == "\\":
            return self.escaped_code()
        self.at += 1
        return ord(self.text[self.at - 1])


_HEX = re.compile(r"\\x([0-9A-Fa-f]{2})")
_HEX_BRACED = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}")
_OCTAL = re.compile(r"\\(0[0-7]{0,2}|[1-7][0-7]{1,2})")


# --- samples

_MAX_SAMPLES = 24
_MAX_SAMPLE_CHARACTERS = 200
_PREFERRED = [1 << ord(letter) for letter in string.ascii_lowercase + string.digits + " -_./"]


def samples(node: Node) -> list[str]:
    """Some short texts that the pattern may match; whether it does, RE2 has to say."""
    return [text for text in _samples(node) if len(text) <= _MAX_SAMPLE_CHARACTERS]


def _samples(node: Node) -> list[str]:
    match node:
        case Chars(mask):
            known = [letter for letter in _PREFERRED if letter & mask]
            letter = known[0] if known else mask & -mask
            return [chr(letter.bit_length() - 1)] if letter & ~OTHER else []
        case Edge():
            return [""]
        case Series(items):
            texts = [""]
            for item in items:
                more = _samples(item)
                pairs = itertools.product(texts, more)
                texts = [before + after for before, after in itertools.islice(pairs, _MAX_SAMPLES)]
                if any(len(text) > _MAX_SAMPLE_CHARACTERS for text in texts):
                    return []
            return texts
        case Choice(items):
            chosen = itertools.chain.from_iterable(map(_samples, items))
            return list(itertools.islice(chosen, _MAX_SAMPLES))
        case Repeat(item, least, most):
            once = [text * max(least, 1) for text in _samples(item)] if most != 0 else []
            return [*([""] if least == 0 else []), *once][:_MAX_SAMPLES]
    assert_never(node)


# --- automata

_FREE = 0
"""Labels an edge that reads nothing. Other labels are sets of letters, or these two."""
_AT_START = -1
_AT_END = -2


class Automaton:
    """States and labelled edges; state 0 is the start."""

    def __init__(self, node: Node, *, anywhere: bool = False):
        """Build it.

        Args:
            node: What to accept.
            anywhere: Whether anything may come before it.

        Raises:
            Beyond: It would have more than `MAX_STATES` states.
        """
        self.edges: list[list[tuple[int, int]]] = [[]]
        start = 0
        if anywhere:
            self.edges[0].append((ANY, 0))
            start = self._to_new(0, _FREE)
        self.accept = self._add(node, start)

    def _to_new(self, state: int, label: int) -> int:
        if len(self.edges) >= MAX_STATES:
            raise Beyond("too many states")
        self.edges.append([])
        self.edges[state].append((label, len(self.edges) - 1))
        return len(self.edges) - 1

    def _add(self, node: Node, start: int) -> int:
        match node:
            case Chars(mask):
                return self._to_new(start, mask)
            case Edge.START:
                return self._to_new(start, _AT_START)
            case Edge.END:
                return self._to_new(start, _AT_END)
            case Series(items):
                for item in items:
                    start = self._add(item, start)
                return start
            case Choice(items):
                ends = [self._add(item, self._to_new(start, _FREE)) for item in items]
                return self._join(ends)
            case Repeat(item, least, most):
                return self._repeat(item, least, most, start)
        assert_never(node)

    def _repeat(self, item: Node, least: int, most: int | None, start: int) -> int:
        if max(least, most or 0) > COPIES:
            least, most = min(least, COPIES), None
        for _ in range(least):
            start = self._add(item, start)
        if most is None:
            loop = self._to_new(start, _FREE)
            self.edges[self._add(item, loop)].append((_FREE, loop))
            return self._to_new(loop, _FREE)
        ends = [start]
        for _ in range(most - least):
            start = self._add(item, start)
            ends.append(start)
        return self._join(ends)

    def _join(self, ends: list[int]) -> int:
        joined = self._to_new(ends[0], _FREE)
        for end in ends[1:]:
            self.edges[end].append((_FREE, joined))
        return joined


class Shape:
    """All texts of a certain shape, given as a pattern that matches the whole of each.

    The pattern must start with one literal character, so that nothing but the start of the
    text is its state 0.
    """

    def __init__(self, pattern: str):
        (whole,) = alternatives(pattern, Budget(len(pattern)))
        self._automaton = Automaton(whole.node)

    def can_hold(self, node: Node, budget: Budget, *, ignoring: Collection[Edge] = ()) -> bool:
        """Whether any of the texts may hold a match of `node`.

        Args:
            node: A pattern, or an alternative of one.
            budget: What is left of it is what this may take.
            ignoring: Edges to take as true anywhere, to see whether they are why not.

        Raises:
            Beyond: It would take more steps, or states, than there are.
        """
        pattern, shape = Automaton(node, anywhere=True), self._automaton
        budget.spend(len(pattern.edges))
        seen = {(0, 0)}
        ahead = [(0, 0)]

        def visit(place: tuple[int, int]) -> None:
            if place not in seen:
                seen.add(place)
                ahead.append(place)

        while ahead:
            here, there = ahead.pop()
            if here == pattern.accept:
                return True
            budget.spend(1)
            for label, target in shape.edges[there]:
                if label == _FREE:
                    visit((here, target))
            for label, target in pattern.edges[here]:
                if label > 0:
                    for letters, beyond in shape.edges[there]:
                        if letters > 0 and letters & label:
                            visit((target, beyond))
                elif (
                    label == _FREE
                    or (label == _AT_START and (there == 0 or Edge.START in ignoring))
                    or (label == _AT_END and (there == shape.accept or Edge.END in ignoring))
                ):
                    visit((target, there))
        return False
