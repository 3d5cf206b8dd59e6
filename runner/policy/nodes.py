"""YAML text into nodes, and nodes into values, with bounds and with the line of everything.

Nothing is converted: where YAML reads `no` as false or `1.10` as a number, the writer is asked
for quotes. What keys there are, and what they mean, is not known here.
"""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from runner.errors import PolicyError

MAX_DOCUMENT_BYTES = 1024**2
MAX_NODES = 50_000
MAX_DEPTH = 50
"""Bounds on what is read. A real policy is far below all of them."""

MAX_NUMBER = 10**9
"""Of calls, and of seconds, in a rate."""

Keys = Mapping[str, tuple[Node, Node]]
"""A mapping's keys, each with its own node and its value's."""


class Written(NamedTuple):
    """A text in the file, and where it stands. Lines are 1-based."""

    text: str
    line: int


TAG = "tag:yaml.org,2002:"
_READ_AS = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
    "null": "nothing",
    "merge": "a merge",
    "value": "a special value",
    "binary": "binary data",
}

_YAML_ADVICE = (
    ("found character '\\t'", "indent with spaces"),
    (
        "found unknown escape character",
        "a backslash in double quotes is \\\\; or use single quotes",
    ),
    ("found undefined alias", "a * at the start needs quotes"),
    ("expected alphabetic or numeric character", "a * or & at the start needs quotes"),
    ("mapping values are not allowed here", "a text with a colon and a space needs quotes"),
)


def flow(value: Any) -> str:
    """A JSON value on one line of printable ASCII, which YAML reads as the same value.

    JSON writes a character beyond U+FFFF as two halves, which YAML does not put together.

    Raises:
        TypeError, ValueError: It is no JSON value.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _NOT_PRINTABLE_ASCII.sub(lambda found: f"\\U{ord(found[0]):08x}", text)


_NOT_PRINTABLE_ASCII = re.compile(r"[^\x20-\x7e]")


# --- YAML


class _TooLarge(yaml.MarkedYAMLError):
    pass


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with bounds, so that deep nesting can't exhaust the stack.

    An alias yields the node that it names, not a copy, and no reader here follows nodes
    without a bound; so aliases of aliases stay as small as they are written.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH or self._nodes > MAX_NODES:
            what = f"{MAX_DEPTH} levels" if self._depth > MAX_DEPTH else f"{MAX_NODES} values"
            raise _TooLarge(problem=f"more than {what}", problem_mark=self.get_mark())
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def compose(text: str, source: str) -> Node:
    """The one document that is in a text.

    Args:
        text: YAML.
        source: What to call it in errors.

    Raises:
        PolicyError: It is not YAML, too large, or no document or several.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise PolicyError(
            f"the policy is larger than {MAX_DOCUMENT_BYTES // 1024**2} MiB", source=source
        )
    line = None
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        except (ValueError, OverflowError):  # PyYAML makes a character of \UFFFFFFFF
            line = loader.line + 1
            raise
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, source) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"character U+{_code(error.character):04X} is not allowed in YAML"
        raise PolicyError(problem, source=source, line=line) from None
    except (ValueError, OverflowError):
        problem = "not YAML: an escape in double quotes names no character"
        raise PolicyError(problem, source=source, line=line) from None
    if node is None:
        raise PolicyError(
            'the policy is empty; to refuse every call, write "mode: deny_all"', source=source
        )
    return node


def _code(character: int | str | bytes) -> int:
    return character if isinstance(character, int) else ord(character)


def _not_yaml(error: yaml.MarkedYAMLError, source: str) -> PolicyError:
    mark = error.problem_mark or error.context_mark
    line = None if mark is None else mark.line + 1
    problem = error.problem or error.context or "it can't be read"
    if isinstance(error, _TooLarge):
        return PolicyError(f"the policy has {problem}", source=source, line=line)
    if problem == "but found another document":
        problem = "the file holds more than one YAML document; a policy is exactly one"
        return PolicyError(problem, source=source, line=line)
    for start, advice in _YAML_ADVICE:
        if problem.startswith(start):
            problem = f"{problem} ({advice})"
    return PolicyError(f"not YAML: {problem}", source=source, line=line)


def line_of(node: Node) -> int:
    """Where a node begins; 1-based."""
    return int(node.start_mark.line) + 1


def is_null(node: Node) -> bool:
    """Whether there is nothing."""
    return isinstance(node, ScalarNode) and node.tag == f"{TAG}null"


def sort_of(node: Node) -> str:
    """What a node is, in words."""
    match node:
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list"
    short = node.tag.removeprefix(TAG)
    return "text" if short == "str" else _READ_AS.get(short, f"a value tagged {node.tag}")


class Nodes:
    """Nodes into values; holds the source's name for the errors."""

    def __init__(self, source: str):
        self.source = source
        self._values = 0

    def fail(self, problem: str, node: Node) -> NoReturn:
        """Raise the error that is about this node."""
        raise PolicyError(problem, source=self.source, line=line_of(node))

    def unknown_key(self, name: str, known: tuple[str, ...]) -> str:
        """What is said of a key that there is not, with what is likely to help."""
        near = difflib.get_close_matches(name.strip().lower(), known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
        return f"unknown key `{name}` ({hint})"

    def number(self, node: Node, what: str) -> float:
        """A number above 0."""
        if not isinstance(node, ScalarNode) or node.tag not in (f"{TAG}int", f"{TAG}float"):
            self.fail(f"{what} must be a number, not {sort_of(node)}", node)
        try:
            value = float(node.value)
        except ValueError:
            self.fail(f"{what} must be a number in decimal digits, not {node.value}", node)
        if not 0 < value <= MAX_NUMBER:
            self.fail(f"{what} must be above 0 and at most {MAX_NUMBER}, not {node.value}", node)
        return value

    def some(self, values: Keys, key: str, rule: str) -> tuple[Written, ...]:
        """The texts of a key, which may be one or a list; none where it is not there."""
        if key not in values:
            return ()
        node = values[key][1]
        items = node.value if isinstance(node, SequenceNode) else [node]
        if not items:
            self.fail(f"{rule}: `{key}` is empty; leave it out", node)
        return tuple(Written(self.text(item, key, rule), line_of(item)) for item in items)

    def names(self, node: Node, name: str) -> tuple[Written, ...]:
        """A list of words."""
        if not isinstance(node, SequenceNode):
            self.fail(f"`{name}` must be a list such as [default], not {sort_of(node)}", node)
        return tuple(Written(self.text(item, name), line_of(item)) for item in node.value)

    def value(self, node: Node, depth: int = 0) -> Any:
        """A node as the JSON value that it stands for."""
        # Aliases of aliases are small as they are written, and without an end as values.
        self._values += 1
        if depth > MAX_DEPTH or self._values > MAX_NODES:
            self.fail("the inputs of the calls are too large, or hold themselves", node)
        match node:
            case MappingNode():
                pairs = self.mapping(node, "a value")
                return {name: self.value(value, depth + 1) for name, (_, value) in pairs.items()}
            case SequenceNode():
                return [self.value(item, depth + 1) for item in node.value]
        kind = node.tag.removeprefix(TAG)
        if kind == "bool":
            return str(node.value).lower() in ("true", "yes", "on")
        if kind == "null":
            return None
        if kind in ("int", "float"):
            try:
                return int(node.value) if kind == "int" else float(node.value)
            except ValueError:
                self.fail(f"{node.value} is no number in decimal digits; put it in quotes", node)
        return self.text(node, "a value")

    def mapping(self, node: Node, what: str) -> dict[str, tuple[Node, Node]]:
        """Key → the key's node and the value's."""
        if not isinstance(node, MappingNode):
            self.fail(f"{what} must be a mapping of keys to values, not {sort_of(node)}", node)
        found: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.fail(f"{what}: a key must be a single word, not {sort_of(key)}", key)
            if key.tag == f"{TAG}merge":
                self.fail(f"{what}: merging with << is not supported; write the keys out", key)
            if key.value in found:
                first = line_of(found[key.value][0])
                self.fail(f"{what}: `{key.value}` is here twice, first in line {first}", key)
            found[key.value] = key, value
        return found

    def closed(self, values: Keys, known: tuple[str, ...], place: str = "") -> None:
        """Refuse every key that is not known, each with what is likely to help."""
        for name, (key, _) in values.items():
            if name not in known:
                self.fail(f"{place}{self.unknown_key(name, known)}", key)

    def word(self, node: Node, name: str, words: Mapping[str, object]) -> str:
        """One of a few words, in any case."""
        word = self.text(node, name).strip().lower()
        if word not in words:
            self.fail(f"`{name}` must be one of {', '.join(words)}, not {word!r}", node)
        return word

    def text(self, node: Node, name: str, rule: str | None = None) -> str:
        """A text, which YAML must not take for anything else."""
        what = f"`{name}`" if rule is None else f"{rule}: `{name}`"
        if not isinstance(node, ScalarNode):
            self.fail(f"{what} must be text, not {sort_of(node)}", node)
        if node.tag != f"{TAG}str":
            self.fail(
                f"{what} must be text, but YAML reads {node.value} as {sort_of(node)}; "
                "put it in quotes",
                node,
            )
        value = str(node.value)
        if not value.isprintable() and any("\ud800" <= c <= "\udfff" for c in value):
            self.fail(f"{what} holds half of a surrogate pair, which is no character", node)
        return value
