"""The file format: YAML text in, a checked `Document` out, with the line of everything.

The schema is closed: what this version does not know is an error, because a rule that is
skipped is a hole. Nothing is converted either: where YAML reads `no` as false or `1.10` as
a number, the writer is asked for quotes. Whether a pattern is a regular expression, and
what rules mean, is not decided here.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from runner.errors import PolicyError
from runner.model import Verdict

MAX_DOCUMENT_BYTES = 1024**2
MAX_NODES = 50_000
MAX_DEPTH = 50
MAX_RULES = 1_000
"""Bounds on what is read. A real policy is far below all of them."""

VERSION = 1


class Mode(StrEnum):
    """How a policy comes to its verdicts."""

    ALLOW_ALL = "allow_all"
    DENY_ALL = "deny_all"
    PATTERN = "pattern"


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule as it was written."""

    name: str
    """Its list and place in it, such as `deny[0]`."""
    verdict: Verdict
    line: int
    tool: str
    """Empty for any tool."""
    match: str
    """Empty for any input."""
    match_line: int


@dataclass(frozen=True, slots=True)
class Document:
    """A policy as it was written. Lines are 1-based."""

    mode: Mode
    mode_line: int
    default: Verdict
    default_line: int | None
    """None where it was not written."""
    reason: str
    """Empty for the mode's own."""
    rules: tuple[RuleText, ...]
    """All `allow` rules, then all `deny` rules, or the other way round: as in the file."""


_MODES = {
    "allow_all": Mode.ALLOW_ALL,
    "allow": Mode.ALLOW_ALL,
    "deny_all": Mode.DENY_ALL,
    "deny": Mode.DENY_ALL,
    "pattern": Mode.PATTERN,
}
_DEFAULTS = {"allow": Verdict.ALLOW, "deny": Verdict.DENY}

_LISTS = {"allow": Verdict.ALLOW, "deny": Verdict.DENY}
_POLICY_KEYS = ("version", "mode", "default", "reason", *_LISTS)
_RULE_KEYS = ("tool", "match")

_NOT_YET = frozenset(
    {"anywhere", "ask", "command", "examples", "field", "glob", "include", "justification"}
    | {"not_match", "on_unknown", "path", "protect", "rate", "redirect", "shadow"}
)
"""Kinds of rules that this version has no code for. They must not pass for typing errors."""
_AGENT_ONLY = frozenset(["rbac", "opa", "multi_party", "allow_outbound"])
"""What rousseau-agent keeps beside its rules, and only rousseau-agent can enforce."""

_TAG = "tag:yaml.org,2002:"
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


def read(text: str, source: str) -> Document:
    """The policy that is written in `text`, bare or under `agent: approver:`.

    Args:
        text: YAML, one document.
        source: What to call it in errors.

    Raises:
        PolicyError: It is not YAML, too large, or not a policy that this version knows.
    """
    return _Reader(source).document(_compose(text, source))


# --- YAML


class _TooLarge(yaml.MarkedYAMLError):
    pass


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with bounds, so that deep nesting can't exhaust the stack.

    An alias yields the node that it names, not a copy, and no reader here follows nodes
    further than a rule is deep; so aliases of aliases stay as small as they are written.
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


def _compose(text: str, source: str) -> Node:
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


# --- schema


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == f"{_TAG}null"


def _sort(node: Node) -> str:
    """What a node is, in words."""
    match node:
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list"
    short = node.tag.removeprefix(_TAG)
    return "text" if short == "str" else _READ_AS.get(short, f"a value tagged {node.tag}")


def _unknown_key(name: str, known: tuple[str, ...]) -> str:
    if name in _NOT_YET:
        return (
            f"this version does not know `{name}`, and does not load a policy that it would "
            "enforce in part"
        )
    if name in _AGENT_ONLY:
        return (
            f"`{name}` is enforced by rousseau-agent only; take it out if the rest of the "
            "policy is enough without it"
        )
    if name == "approver":
        return "`approver` belongs under `agent:`, or its keys here"
    near = difflib.get_close_matches(name.strip().lower(), known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    return f"unknown key `{name}` ({hint})"


class _Reader:
    """Nodes into values; holds the source's name for the errors."""

    def __init__(self, source: str):
        self.source = source

    def fail(self, problem: str, node: Node) -> NoReturn:
        raise PolicyError(problem, source=self.source, line=_line(node))

    def document(self, root: Node) -> Document:
        top = self.mapping(root, "a policy")
        if "agent" not in top:
            return self.policy(top, root)
        agent = self.mapping(top["agent"][1], "`agent`")
        for outside, place in ((top, "the top"), (agent, "`agent`")):
            for name in _LISTS:
                if name in outside:
                    self.fail(
                        f"`{name}` at {place} would be ignored: it belongs under "
                        "`agent: approver:`, beside the other rules",
                        outside[name][0],
                    )
        if "approver" not in agent:
            self.fail(
                "`agent` has no `approver`, so there is no policy here; to allow every call, "
                'write "mode: allow_all" under `agent: approver:`',
                top["agent"][0],
            )
        key, approver = agent["approver"]
        if _is_null(approver):
            self.fail("`approver` is empty: write a mode and rules under it", key)
        return self.policy(self.mapping(approver, "`approver`"), approver)

    def policy(self, values: Mapping[str, tuple[Node, Node]], node: Node) -> Document:
        self.closed(values, _POLICY_KEYS)
        given = {name: value for name, (_, value) in values.items() if not _is_null(value)}
        if "version" in given:
            self.version(given["version"])
        rules = tuple(
            rule
            for name, value in given.items()
            if name in _LISTS
            for rule in self.rules(value, name)
        )
        if len(rules) > MAX_RULES:
            self.fail(f"more than {MAX_RULES} rules", node)
        if "mode" in given:
            mode = _MODES[self.word(given["mode"], "mode", _MODES)]
        elif _LISTS.keys() & values.keys() or "default" in given:
            mode = Mode.PATTERN
        else:
            self.fail(
                "the policy says neither a `mode` nor rules; to allow every call, write "
                '"mode: allow_all"',
                node,
            )
        default = given.get("default")
        return Document(
            mode=mode,
            mode_line=_line(given.get("mode", node)),
            default=(
                Verdict.DENY
                if default is None
                else _DEFAULTS[self.word(default, "default", _DEFAULTS)]
            ),
            default_line=None if default is None else _line(default),
            reason=self.text(given["reason"], "reason") if "reason" in given else "",
            rules=rules,
        )

    def version(self, node: Node) -> None:
        if not isinstance(node, ScalarNode) or node.tag != f"{_TAG}int":
            self.fail(f"`version` must be the number {VERSION}, not {_sort(node)}", node)
        if node.value != str(VERSION):
            self.fail(
                f"this policy says it is version {node.value}; this runner knows version "
                f"{VERSION} only",
                node,
            )

    def rules(self, node: Node, name: str) -> list[RuleText]:
        if not isinstance(node, SequenceNode):
            self.fail(f"`{name}` must be a list of rules, not {_sort(node)}", node)
        return [
            self.rule(item, f"{name}[{index}]", _LISTS[name])
            for index, item in enumerate(node.value)
        ]

    def rule(self, node: Node, name: str, verdict: Verdict) -> RuleText:
        if _is_null(node):
            self.fail(f"{name} is empty; a rule for every call is {{}}", node)
        if not isinstance(node, MappingNode):
            self.fail(
                f"{name} must be a mapping such as {{tool: bash, match: 'sudo'}}, "
                f"not {_sort(node)}",
                node,
            )
        values = self.mapping(node, name)
        self.closed(values, _RULE_KEYS, f"{name}: ")
        found: dict[str, str] = {}
        for key, (_, value) in values.items():
            if _is_null(value):
                what: Literal["tool", "input"] = "tool" if key == "tool" else "input"
                self.fail(
                    f'{name}: `{key}` has no value; leave it out, or write "", for any {what}',
                    value,
                )
            if key == "tool" and isinstance(value, SequenceNode):
                self.fail(
                    f"{name}: this version takes one tool in a rule, not a list; write a rule "
                    "for each",
                    value,
                )
            found[key] = self.text(value, key, name)
        if found.get("tool") == "*":
            self.fail(
                f"{name}: this version does not know the tool '*'; leave `tool` out for any tool",
                values["tool"][1],
            )
        return RuleText(
            name=name,
            verdict=verdict,
            line=_line(node),
            tool=found.get("tool", ""),
            match=found.get("match", ""),
            match_line=_line(values["match"][1]) if "match" in values else _line(node),
        )

    def mapping(self, node: Node, what: str) -> dict[str, tuple[Node, Node]]:
        """Key → the key's node and the value's."""
        if not isinstance(node, MappingNode):
            self.fail(f"{what} must be a mapping of keys to values, not {_sort(node)}", node)
        found: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.fail(f"{what}: a key must be a single word, not {_sort(key)}", key)
            if key.tag == f"{_TAG}merge":
                self.fail(f"{what}: merging with << is not supported; write the keys out", key)
            if key.value in found:
                first = _line(found[key.value][0])
                self.fail(f"{what}: `{key.value}` is here twice, first in line {first}", key)
            found[key.value] = key, value
        return found

    def closed(
        self, values: Mapping[str, tuple[Node, Node]], known: tuple[str, ...], place: str = ""
    ) -> None:
        """Refuse every key that is not known, each with what is likely to help."""
        for name, (key, _) in values.items():
            if name not in known:
                self.fail(f"{place}{_unknown_key(name, known)}", key)

    def word(self, node: Node, name: str, words: Mapping[str, object]) -> str:
        """One of a few words, in any case."""
        word = self.text(node, name).strip().lower()
        if word not in words:
            later = " (this version can't ask anybody)" if word == "ask" else ""
            self.fail(f"`{name}` must be one of {', '.join(words)}, not {word!r}{later}", node)
        return word

    def text(self, node: Node, name: str, rule: str | None = None) -> str:
        what = f"`{name}`" if rule is None else f"{rule}: `{name}`"
        if not isinstance(node, ScalarNode):
            self.fail(f"{what} must be text, not {_sort(node)}", node)
        if node.tag != f"{_TAG}str":
            self.fail(
                f"{what} must be text, but YAML reads {node.value} as {_sort(node)}; "
                "put it in quotes",
                node,
            )
        value = str(node.value)
        if not value.isprintable() and any("\ud800" <= c <= "\udfff" for c in value):
            self.fail(f"{what} holds half of a surrogate pair, which is no character", node)
        return value
