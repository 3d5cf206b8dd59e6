"""The file format: YAML text in, a checked `Document` out, with the line of everything.

The schema is closed: what this version does not know is an error, because a rule that is
skipped is a hole. Nothing is converted either: where YAML reads `no` as false or `1.10` as
a number, the writer is asked for quotes. Whether a pattern is a regular expression, and
what rules mean, is not decided here.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from runner.errors import PolicyError
from runner.model import Verdict

MAX_DOCUMENT_BYTES = 1024**2
MAX_NODES = 50_000
MAX_DEPTH = 50
MAX_RULES = 1_000
MAX_EXAMPLES = 1_000
"""Bounds on what is read. A real policy is far below all of them."""

MAX_NUMBER = 10**9
"""Of calls, and of seconds, in a rate."""

VERSION = 1


class Mode(StrEnum):
    """How a policy comes to its verdicts."""

    ALLOW_ALL = "allow_all"
    DENY_ALL = "deny_all"
    PATTERN = "pattern"


class Written(NamedTuple):
    """A text in the file, and where it stands. Lines are 1-based."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ConditionText:
    """One thing that a rule looks at."""

    key: str
    """`match`, `command`, `path`, `glob`, `redirect`, `anywhere` or `field`."""
    text: str
    line: int
    field: str = ""
    """For `field`: the argument's name."""


@dataclass(frozen=True, slots=True)
class RateText:
    """How often, as it was written."""

    calls: int
    per_s: float
    per: str


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule as it was written."""

    name: str
    """Its list and place in it, such as `deny[0]`."""
    verdict: Verdict
    line: int
    tools: tuple[str, ...]
    """Empty for any tool."""
    conditions: tuple[ConditionText, ...] = ()
    justification: str = ""
    rate: RateText | None = None

    @property
    def is_plain(self) -> bool:
        """Whether rousseau-agent knows all that is in it."""
        return (
            len(self.tools) <= 1
            and all(condition.key == "match" for condition in self.conditions)
            and not self.justification
            and self.rate is None
        )

    @property
    def match(self) -> ConditionText | None:
        """The pattern over the call's JSON."""
        return next((c for c in self.conditions if c.key == "match"), None)


@dataclass(frozen=True, slots=True)
class ExampleText:
    """A call, and what the policy must say about it."""

    line: int
    tool: str
    arguments: Mapping[str, Any]
    verdict: Verdict
    resolved: str | None = None
    """Where the call's path leads; None for nowhere else."""

    def __str__(self) -> str:
        return f"{self.tool} {json.dumps(dict(self.arguments), ensure_ascii=False)}"


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
    """All rules of one list, then those of the next: as in the file."""
    version: int | None = None
    on_unknown: Verdict = Verdict.DENY
    examples: tuple[ExampleText, ...] = ()
    protect: tuple[Written, ...] | None = None
    """None where it was not written."""
    rate: RateText | None = None
    include: tuple[Written, ...] = ()
    shadow: Written | None = None
    could_be_rousseaus: bool = False
    """It has nothing in it that rousseau-agent does not know."""


_MODES = {
    "allow_all": Mode.ALLOW_ALL,
    "allow": Mode.ALLOW_ALL,
    "deny_all": Mode.DENY_ALL,
    "deny": Mode.DENY_ALL,
    "pattern": Mode.PATTERN,
}
_VERDICTS = {str(verdict): verdict for verdict in Verdict}
_ON_UNKNOWN = {"deny": Verdict.DENY, "ask": Verdict.ASK}

_LISTS = {"allow": Verdict.ALLOW, "ask": Verdict.ASK, "deny": Verdict.DENY}
_POLICY_KEYS = (
    *("version", "mode", "default", "on_unknown", "reason", "include", *_LISTS),
    *("protect", "rate", "examples", "shadow"),
)
_ROUSSEAUS_KEYS = frozenset({"mode", "default", "reason", "allow", "deny"})
_PATTERN_KEYS = ("match", "command", "path", "glob", "redirect", "anywhere")
_RULE_KEYS = ("tool", *_PATTERN_KEYS, "field", "justification", "rate")
_EXAMPLE_KEYS = ("tool", "input", "command", "path", "resolved", "is")
_RATE_KEYS = ("calls", "per_s", "per")
_PER = ("session", "tenant")

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


def read_cases(text: str, source: str) -> tuple[ExampleText, ...]:
    """Calls with what a policy has to say of them: a YAML list, as under `examples`.

    JSON is YAML, so a list of JSON objects will do.

    Raises:
        PolicyError: It is not YAML, too large, or not a list of such calls.
    """
    return _Reader(source).examples(_compose(text, source), "cases")


def read(text: str, source: str) -> Document:
    """The policy that is written in `text`, bare or under `agent: approver:`.

    Args:
        text: YAML, one document.
        source: What to call it in errors.

    Raises:
        PolicyError: It is not YAML, too large, or not a policy that this version knows.
    """
    return _Reader(source).document(_compose(text, source))


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


def _without_value(rule: str, key: str) -> str:
    if key in ("tool", "match"):
        what = "tool" if key == "tool" else "input"
        return f'{rule}: `{key}` has no value; leave it out, or write "", for any {what}'
    return f"{rule}: `{key}` has no value; leave it out"


class _Reader:
    """Nodes into values; holds the source's name for the errors."""

    def __init__(self, source: str):
        self.source = source
        self._values = 0

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
        version = self.version(given["version"]) if "version" in given else None
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
        is_plain = given.keys() <= _ROUSSEAUS_KEYS and all(rule.is_plain for rule in rules)
        on_unknown = Verdict.DENY
        if "on_unknown" in given:
            on_unknown = _ON_UNKNOWN[self.word(given["on_unknown"], "on_unknown", _ON_UNKNOWN)]
        return Document(
            mode=mode,
            mode_line=_line(given.get("mode", node)),
            default=(
                Verdict.DENY
                if default is None
                else _VERDICTS[self.word(default, "default", _VERDICTS)]
            ),
            default_line=None if default is None else _line(default),
            reason=self.text(given["reason"], "reason") if "reason" in given else "",
            rules=rules,
            version=version,
            on_unknown=on_unknown,
            examples=self.examples(given["examples"], "examples") if "examples" in given else (),
            protect=self.names(given["protect"], "protect") if "protect" in given else None,
            rate=self.rate(given["rate"], "`rate`") if "rate" in given else None,
            include=self.names(given["include"], "include") if "include" in given else (),
            shadow=(
                Written(self.text(given["shadow"], "shadow"), _line(given["shadow"]))
                if "shadow" in given
                else None
            ),
            could_be_rousseaus=is_plain,
        )

    def version(self, node: Node) -> int:
        if not isinstance(node, ScalarNode) or node.tag != f"{_TAG}int":
            self.fail(f"`version` must be the number {VERSION}, not {_sort(node)}", node)
        if node.value != str(VERSION):
            self.fail(
                f"this policy says it is version {node.value}; this runner knows version "
                f"{VERSION} only",
                node,
            )
        return VERSION

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
        conditions: list[ConditionText] = []
        for key, (_, value) in values.items():
            if _is_null(value):
                self.fail(_without_value(name, key), value)
            if key in _PATTERN_KEYS:
                text = self.text(value, key, name)
                if text or key != "match":  # the reference's: an empty match is any input
                    conditions.append(ConditionText(key, text, _line(value)))
            elif key == "field":
                conditions += self.fields(value, name)
        return RuleText(
            name=name,
            verdict=verdict,
            line=_line(node),
            tools=self.tools(values["tool"][1], name) if "tool" in values else (),
            conditions=tuple(conditions),
            justification=(
                self.text(values["justification"][1], "justification", name)
                if "justification" in values
                else ""
            ),
            rate=self.rate(values["rate"][1], f"{name}: `rate`") if "rate" in values else None,
        )

    def tools(self, node: Node, rule: str) -> tuple[str, ...]:
        """Names of tools; none for any."""
        if not isinstance(node, SequenceNode):
            tool = self.text(node, "tool", rule)
            return () if tool in ("", "*") else (tool,)
        names = tuple(self.text(item, "tool", rule) for item in node.value)
        if not names:
            self.fail(f"{rule}: `tool` names no tool; leave it out, or write '*', for any", node)
        for name in names:
            if name in ("", "*"):
                self.fail(f"{rule}: '*' stands alone, for any tool, not in a list", node)
        return names

    def fields(self, node: Node, rule: str) -> list[ConditionText]:
        """Argument → pattern."""
        values = self.mapping(node, f"{rule}: `field`")
        if not values:
            self.fail(f"{rule}: `field` is empty; write {{name: pattern}}", node)
        return [
            ConditionText("field", self.text(value, f"field.{name}", rule), _line(value), name)
            for name, (_, value) in values.items()
        ]

    def rate(self, node: Node, what: str) -> RateText:
        """Calls in a time."""
        values = self.mapping(node, what)
        self.closed(values, _RATE_KEYS, f"{what}: ")
        for key in ("calls", "per_s"):
            if key not in values:
                self.fail(f"{what} needs `{key}`, as in {{calls: 60, per_s: 60}}", node)
        calls = self.number(values["calls"][1], f"{what}: `calls`")
        if calls != int(calls):
            self.fail(f"{what}: `calls` must be a whole number", values["calls"][1])
        per = _PER[0]
        if "per" in values:
            per = self.word(values["per"][1], "per", dict.fromkeys(_PER))
        return RateText(int(calls), self.number(values["per_s"][1], f"{what}: `per_s`"), per)

    def number(self, node: Node, what: str) -> float:
        """A number above 0."""
        if not isinstance(node, ScalarNode) or node.tag not in (f"{_TAG}int", f"{_TAG}float"):
            self.fail(f"{what} must be a number, not {_sort(node)}", node)
        try:
            value = float(node.value)
        except ValueError:
            self.fail(f"{what} must be a number in decimal digits, not {node.value}", node)
        if not 0 < value <= MAX_NUMBER:
            self.fail(f"{what} must be above 0 and at most {MAX_NUMBER}, not {node.value}", node)
        return value

    def names(self, node: Node, name: str) -> tuple[Written, ...]:
        """A list of words."""
        if not isinstance(node, SequenceNode):
            self.fail(f"`{name}` must be a list such as [default], not {_sort(node)}", node)
        return tuple(Written(self.text(item, name), _line(item)) for item in node.value)

    def examples(self, node: Node, name: str) -> tuple[ExampleText, ...]:
        """Calls with what is to be said of them."""
        if not isinstance(node, SequenceNode):
            self.fail(f"`{name}` must be a list of calls, not {_sort(node)}", node)
        if len(node.value) > MAX_EXAMPLES:
            self.fail(f"`{name}` has more than {MAX_EXAMPLES} calls", node)
        return tuple(
            self.example(item, f"{name}[{index}]") for index, item in enumerate(node.value)
        )

    def example(self, node: Node, name: str) -> ExampleText:
        """One call."""
        values = self.mapping(node, name)
        self.closed(values, _EXAMPLE_KEYS, f"{name}: ")
        for key in ("tool", "is"):
            if key not in values:
                self.fail(
                    f"{name} needs `{key}`, as in {{tool: bash, command: ls, is: allow}}", node
                )
        arguments: dict[str, Any] = {}
        if "input" in values:
            self.mapping(values["input"][1], f"{name}: `input`")
            arguments = self.value(values["input"][1])
        for key in ("command", "path"):
            if key in values:
                arguments[key] = self.text(values[key][1], key, name)
        return ExampleText(
            line=_line(node),
            tool=self.text(values["tool"][1], "tool", name),
            arguments=arguments,
            verdict=_VERDICTS[self.word(values["is"][1], "is", _VERDICTS)],
            resolved=(
                self.text(values["resolved"][1], "resolved", name) if "resolved" in values else None
            ),
        )

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
        kind = node.tag.removeprefix(_TAG)
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
            self.fail(f"`{name}` must be one of {', '.join(words)}, not {word!r}", node)
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
