"""Rules, and the one function that decides a call. Pure: no files, no clock, no state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.model import Decision, Verdict
from runner.policy.matching import Condition, NotJson, Subject

UNREADABLE = Decision(
    Verdict.DENY, "input", "denied: the input has no JSON form, so no rule can judge it"
)
"""The answer to a call that no rule can be applied to."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision, and the calls that it is for: those for which every condition holds."""

    decision: Decision
    """Its `rule` is this rule's name, such as `deny[0]`."""
    line: int
    tool: str | None = None
    """The tool's name without regard to case; None for any tool."""
    conditions: tuple[Condition, ...] = ()

    def applies(self, subject: Subject) -> bool:
        """Whether the call is one of those."""
        if self.tool is not None and self.tool != subject.tool:
            return False
        for condition in self.conditions:  # noqa: SIM110 - half the time of all() on a generator
            if not condition.holds(subject):
                return False
        return True


_RANK = {Verdict.DENY: 0, Verdict.ASK: 1, Verdict.ALLOW: 2}


def by_precedence(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules in the order in which they are asked: the strictest verdict first."""
    return tuple(sorted(rules, key=lambda rule: _RANK[rule.decision.verdict]))


def decide(
    rules: Sequence[Rule],
    default: Decision,
    tool: str,
    arguments: Mapping[str, Any],
    canonical: str | None = None,
) -> Decision:
    """The decision of the first rule that applies, or `default`.

    Args:
        rules: In the order of `by_precedence`.
        default: What holds where no rule applies.
        tool: The tool's name, in any case.
        arguments: Its decoded input, in the order of its schema.
        canonical: The same as JSON, where that is at hand.
    """
    try:
        subject = Subject.of(tool, arguments, canonical)
    except NotJson:
        return UNREADABLE
    for rule in rules:
        if rule.applies(subject):
            return rule.decision
    return default
