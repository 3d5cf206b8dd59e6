"""The section `network` of a policy as it is written. What hosts and paths mean is `network`'s."""

from dataclasses import dataclass

from yaml.nodes import Node, ScalarNode, SequenceNode

from runner.model import Verdict
from runner.policy.nodes import Nodes, Written, is_null, line_of, sort_of

MAX_NETWORK_RULES = 1_000
MAX_NETWORK_EXAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class NetworkRuleText:
    """A rule of the section as it was written."""

    name: str
    """Its list and place in it, such as `network.deny[0]`."""
    verdict: Verdict
    line: int
    hosts: tuple[Written, ...]
    ports: tuple[int, ...] | None = None
    """None where they were not written; empty for any."""
    methods: tuple[Written, ...] = ()
    paths: tuple[Written, ...] = ()
    addresses: tuple[Written, ...] = ()
    justification: str = ""


@dataclass(frozen=True, slots=True)
class NetworkExampleText:
    """A connection, and what the section must say about it."""

    name: str
    line: int
    connect: str
    """`HOST:PORT`, or a URL."""
    method: str
    """Empty where none was written."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class NetworkText:
    """The section."""

    rules: tuple[NetworkRuleText, ...] = ()
    examples: tuple[NetworkExampleText, ...] = ()


NO_NETWORK = NetworkText()
"""Where the section is left out."""

_LISTS = {"allow": Verdict.ALLOW, "deny": Verdict.DENY}
_VERDICTS = {str(verdict): verdict for verdict in _LISTS.values()}
_KEYS = (*_LISTS, "examples")
_RULE_KEYS = ("host", "ports", "methods", "paths", "addresses", "justification")
_EXAMPLE_KEYS = ("connect", "method", "is")


class NetworkNodes(Nodes):
    """Nodes into the section."""

    def section(self, node: Node) -> NetworkText:
        """All of it."""
        values = self.mapping(node, "`network`")
        self.closed(values, _KEYS, "network: ")
        given = {name: value for name, (_, value) in values.items() if not is_null(value)}
        rules = tuple(
            self.rule(item, f"network.{name}[{index}]", _LISTS[name])
            for name in given
            if name in _LISTS
            for index, item in enumerate(self.items(given[name], name, MAX_NETWORK_RULES))
        )
        examples = given.get("examples")
        listed = [] if examples is None else self.items(examples, "examples", MAX_NETWORK_EXAMPLES)
        return NetworkText(
            rules,
            tuple(
                self.example(item, f"network.examples[{index}]")
                for index, item in enumerate(listed)
            ),
        )

    def items(self, node: Node, name: str, most: int) -> list[Node]:
        """The members of a list."""
        if not isinstance(node, SequenceNode):
            self.fail(f"`network.{name}` must be a list, not {sort_of(node)}", node)
        if len(node.value) > most:
            self.fail(f"`network.{name}` has more than {most} members", node)
        found: list[Node] = node.value
        return found

    def rule(self, node: Node, name: str, verdict: Verdict) -> NetworkRuleText:
        """A rule."""
        values = self.mapping(node, f"{name}, a rule such as {{host: pypi.org}},")
        self.closed(values, _RULE_KEYS, f"{name}: ")
        for key, (_, value) in values.items():
            if is_null(value):
                self.fail(f"{name}: `{key}` has no value; leave it out", value)
        hosts = self.some(values, "host", name)
        if not hosts:
            self.fail(f"{name} needs `host`, as in {{host: pypi.org}}", node)
        return NetworkRuleText(
            name=name,
            verdict=verdict,
            line=line_of(node),
            hosts=hosts,
            ports=self.ports(values["ports"][1], name) if "ports" in values else None,
            methods=self.some(values, "methods", name),
            paths=self.some(values, "paths", name),
            addresses=self.some(values, "addresses", name),
            justification=(
                self.text(values["justification"][1], "justification", name)
                if "justification" in values
                else ""
            ),
        )

    def ports(self, node: Node, rule: str) -> tuple[int, ...]:
        """Port numbers; none for `any`."""
        if isinstance(node, ScalarNode) and node.value == "any":
            return ()
        items = node.value if isinstance(node, SequenceNode) else [node]
        found = [int(self.number(item, f"{rule}: `ports`")) for item in items]
        for item, port in zip(items, found, strict=True):
            if not port < 65536 or str(port) != item.value:
                self.fail(f"{rule}: {item.value} is no port", item)
        if not found:
            self.fail(f"{rule}: `ports` is empty; leave it out for 443, or write any", node)
        return tuple(found)

    def example(self, node: Node, name: str) -> NetworkExampleText:
        """An example."""
        values = self.mapping(node, name)
        self.closed(values, _EXAMPLE_KEYS, f"{name}: ")
        for key in ("connect", "is"):
            if key not in values:
                self.fail(
                    f"{name} needs `{key}`, as in {{connect: 'pypi.org:443', is: allow}}", node
                )
        return NetworkExampleText(
            name=name,
            line=line_of(node),
            connect=self.text(values["connect"][1], "connect", name),
            method=self.text(values["method"][1], "method", name) if "method" in values else "",
            verdict=_VERDICTS[self.word(values["is"][1], "is", _VERDICTS)],
        )
