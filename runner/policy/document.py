"""The file format: YAML text in, a checked `Document` out, with the line of everything.

The schema is closed: what this version does not know is an error, because a rule that is
skipped is a hole. Whether a pattern is a regular expression, and what rules mean, is not
decided here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from runner.model import Verdict
from runner.policy.network_text import NO_NETWORK, NetworkNodes, NetworkText
from runner.policy.nodes import TAG, Keys, Nodes, Written, compose, is_null, line_of, sort_of

MAX_RULES = 1_000
MAX_EXAMPLES = 1_000
"""Bounds on what is read. A real policy is far below all of them."""

VERSION = 1


class Mode(StrEnum):
    """How a policy comes to its verdicts."""

    ALLOW_ALL = "allow_all"
    DENY_ALL = "deny_all"
    PATTERN = "pattern"


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
    network: NetworkText = NO_NETWORK
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
    *("protect", "rate", "examples", "shadow", "network"),
)
_ROUSSEAUS_KEYS = frozenset({"mode", "default", "reason", "allow", "deny"})
_PATTERN_KEYS = ("match", "command", "path", "glob", "redirect", "anywhere")
_RULE_KEYS = ("tool", *_PATTERN_KEYS, "field", "justification", "rate")
_EXAMPLE_KEYS = ("tool", "input", "command", "path", "resolved", "is")
_RATE_KEYS = ("calls", "per_s", "per")
_PER = ("session", "tenant")

_AGENT_ONLY = frozenset(["rbac", "opa", "multi_party", "allow_outbound"])
"""What rousseau-agent keeps beside its rules, and only rousseau-agent can enforce."""


def read_cases(text: str, source: str) -> tuple[ExampleText, ...]:
    """Calls with what a policy has to say of them: a YAML list, as under `examples`.

    JSON is YAML, so a list of JSON objects will do.

    Raises:
        PolicyError: It is not YAML, too large, or not a list of such calls.
    """
    return _Reader(source).examples(compose(text, source), "cases")


def read(text: str, source: str) -> Document:
    """The policy that is written in `text`, bare or under `agent: approver:`.

    Args:
        text: YAML, one document.
        source: What to call it in errors.

    Raises:
        PolicyError: It is not YAML, too large, or not a policy that this version knows.
    """
    return _Reader(source).document(compose(text, source))


# --- schema


def _without_value(rule: str, key: str) -> str:
    if key in ("tool", "match"):
        what = "tool" if key == "tool" else "input"
        return f'{rule}: `{key}` has no value; leave it out, or write "", for any {what}'
    return f"{rule}: `{key}` has no value; leave it out"


class _Reader(Nodes):
    """Nodes into a policy."""

    def unknown_key(self, name: str, known: tuple[str, ...]) -> str:
        if name in _AGENT_ONLY:
            return (
                f"`{name}` is enforced by rousseau-agent only; take it out if the rest of the "
                "policy is enough without it"
            )
        if name == "approver":
            return "`approver` belongs under `agent:`, or its keys here"
        return super().unknown_key(name, known)

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
        if is_null(approver):
            self.fail("`approver` is empty: write a mode and rules under it", key)
        return self.policy(self.mapping(approver, "`approver`"), approver)

    def policy(self, values: Keys, node: Node) -> Document:
        self.closed(values, _POLICY_KEYS)
        given = {name: value for name, (_, value) in values.items() if not is_null(value)}
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
            mode_line=line_of(given.get("mode", node)),
            default=(
                Verdict.DENY
                if default is None
                else _VERDICTS[self.word(default, "default", _VERDICTS)]
            ),
            default_line=None if default is None else line_of(default),
            reason=self.text(given["reason"], "reason") if "reason" in given else "",
            rules=rules,
            version=version,
            on_unknown=on_unknown,
            examples=self.examples(given["examples"], "examples") if "examples" in given else (),
            protect=self.names(given["protect"], "protect") if "protect" in given else None,
            rate=self.rate(given["rate"], "`rate`") if "rate" in given else None,
            include=self.names(given["include"], "include") if "include" in given else (),
            shadow=(
                Written(self.text(given["shadow"], "shadow"), line_of(given["shadow"]))
                if "shadow" in given
                else None
            ),
            network=(
                NetworkNodes(self.source).section(given["network"])
                if "network" in given
                else NO_NETWORK
            ),
            could_be_rousseaus=is_plain,
        )

    def version(self, node: Node) -> int:
        if not isinstance(node, ScalarNode) or node.tag != f"{TAG}int":
            self.fail(f"`version` must be the number {VERSION}, not {sort_of(node)}", node)
        if node.value != str(VERSION):
            self.fail(
                f"this policy says it is version {node.value}; this runner knows version "
                f"{VERSION} only",
                node,
            )
        return VERSION

    def rules(self, node: Node, name: str) -> list[RuleText]:
        if not isinstance(node, SequenceNode):
            self.fail(f"`{name}` must be a list of rules, not {sort_of(node)}", node)
        return [
            self.rule(item, f"{name}[{index}]", _LISTS[name])
            for index, item in enumerate(node.value)
        ]

    def rule(self, node: Node, name: str, verdict: Verdict) -> RuleText:
        if is_null(node):
            self.fail(f"{name} is empty; a rule for every call is {{}}", node)
        if not isinstance(node, MappingNode):
            self.fail(
                f"{name} must be a mapping such as {{tool: bash, match: 'sudo'}}, "
                f"not {sort_of(node)}",
                node,
            )
        values = self.mapping(node, name)
        self.closed(values, _RULE_KEYS, f"{name}: ")
        conditions: list[ConditionText] = []
        for key, (_, value) in values.items():
            if is_null(value):
                self.fail(_without_value(name, key), value)
            if key in _PATTERN_KEYS:
                text = self.text(value, key, name)
                if text or key != "match":  # the reference's: an empty match is any input
                    conditions.append(ConditionText(key, text, line_of(value)))
            elif key == "field":
                conditions += self.fields(value, name)
        return RuleText(
            name=name,
            verdict=verdict,
            line=line_of(node),
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
            ConditionText("field", self.text(value, f"field.{name}", rule), line_of(value), name)
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

    def examples(self, node: Node, name: str) -> tuple[ExampleText, ...]:
        """Calls with what is to be said of them."""
        if not isinstance(node, SequenceNode):
            self.fail(f"`{name}` must be a list of calls, not {sort_of(node)}", node)
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
            line=line_of(node),
            tool=self.text(values["tool"][1], "tool", name),
            arguments=arguments,
            verdict=_VERDICTS[self.word(values["is"][1], "is", _VERDICTS)],
            resolved=(
                self.text(values["resolved"][1], "resolved", name) if "resolved" in values else None
            ),
        )
