"""Rules, and the one function that judges a call. Pure: no files, no clock, no state.

A rule is either about the call as a whole or about the *items* of a script: its simple
commands and the files that its redirections write. Each item is judged by itself, and the
strictest of all answers is the call's. What can't be told from a script before it runs is an
item too, and no rule can allow it.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.helper.watch import fold
from runner.model import Decision, Verdict
from runner.policy.acts import DIRECTORY, SCRIPT, USER, VARIABLES
from runner.policy.commands import CommandPattern, TooMuchWork, Work
from runner.policy.matching import Condition, JsonMatches, NotJson, PathTest, Subject, looks_encoded
from runner.policy.paths import NOTHING_PROTECTED, Protected
from runner.policy.shell import PLAIN_START, Command, Script, Start, Unknown, Write, analyse

CHANGES_FILES = frozenset({"write", "edit", "multi_edit"})
"""The tools that are refused protected files."""
USED_SHELLS = frozenset({"shell"})
"""Tools whose scripts run where earlier ones have left their state."""
KIN: Mapping[str, frozenset[str]] = {
    "bash": frozenset(
        {
            "process_start",
            "process_poll",
            "process_write",
            "process_kill",
            "process_list",
            "shell",
        }
    ),
    "edit": frozenset({"multi_edit"}),
    "grep": frozenset({"glob", "list"}),
}
"""Tools that do what another one does in another way: a rule for that one is for them, too, so
that what it refuses can't be had by another name."""
QUOTED_CHARACTERS = 80
"""Of a script, in a reason."""

UNREADABLE = Decision(
    Verdict.DENY, "input", "denied: the input has no JSON form, so no rule can judge it"
)
"""The answer to a call that no rule can be applied to."""
ENCODED = Decision(
    Verdict.DENY,
    "input",
    "denied: the path holds an encoded dot or slash, such as %2e; nothing decodes it, so write"
    " the path that is meant",
)
"""The answer to a path that reads like another, where there are rules for paths."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How many calls may run in a span of time."""

    calls: int
    per_s: float
    per: str = "session"
    """`session` or `tenant`: whose calls are counted together."""
    rule: str | None = None
    """The rule whose calls count; None for all calls."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision, and what it is for: calls, or items of calls, for which all of it holds."""

    decision: Decision
    """Its `rule` is this rule's name, such as `deny[0]`."""
    line: int
    tools: frozenset[str] | None = None
    """The tools' names without regard to case, with their kin; None for any tool."""
    conditions: tuple[Condition, ...] = ()
    command: CommandPattern | None = None
    """With this, the rule is about the simple commands of a script that it fits."""
    redirect: PathTest | None = None
    """With this, the rule is about files that a script's redirections write."""
    rate: Rate | None = None

    @property
    def is_about_items(self) -> bool:
        """Whether it judges parts of a script rather than the call."""
        return self.command is not None or self.redirect is not None

    def is_for(self, tool: str) -> bool:
        """Whether it can apply to calls of this tool."""
        return self.tools is None or tool in self.tools

    def is_about_write(self, path: str) -> bool:
        """Whether it is about files that a script writes, and this is one of them.

        A refusal is meant for what lax file systems take for the same name, too.
        """
        if self.redirect is None:
            return False
        if self.redirect.found_in(path.encode()):
            return True
        is_refusal = self.decision.verdict is not Verdict.ALLOW
        return is_refusal and self.redirect.found_in(fold(path).encode())

    def applies(self, subject: Subject) -> bool:
        """Whether the call is one of those; for a rule about items, whether they may be.

        A refusal holds where it does of the call as it is, or of anything that it comes to. To
        be allowed, all that it comes to has to be; and a rule that says what the script may be
        has to say as well what may stand beside it and change its meaning.
        """
        if self.tools is not None and subject.tool not in self.tools:
            return False
        if not self.conditions:
            return True
        if self.decision.verdict is not Verdict.ALLOW:
            return self._holds(subject) or any(map(self._holds, subject.acts))
        return self._fits(subject) and (self.is_about_items or not self._overlooks(subject))

    def _overlooks(self, subject: Subject) -> bool:
        """Whether it looks at the call's script, and not at what makes another thing of it."""
        if not subject.variants:
            return False
        script, *others = subject.variants
        return not self._fits(script) and any(map(self._fits, others))

    def _fits(self, subject: Subject) -> bool:
        # A rule for `multi_edit` alone means that call as it is, and so does one for a whole call.
        acts = [act for act in subject.acts if self.is_for(act.tool)]
        if not acts or self._is_exactly(subject):
            return self._holds(subject)
        return all(map(self._holds, acts))

    def _is_exactly(self, subject: Subject) -> bool:
        return any(
            isinstance(condition, JsonMatches) and condition.is_exactly(subject)
            for condition in self.conditions
        )

    def _holds(self, subject: Subject) -> bool:
        for condition in self.conditions:  # noqa: SIM110 - half the time of all() on a generator
            if not condition.holds(subject):
                return False
        return True


def with_kin(tools: Iterable[str]) -> frozenset[str]:
    """The tools that a rule is for which names these; none named: none."""
    named = frozenset(tool.casefold() for tool in tools)
    return named.union(*(KIN.get(tool, frozenset()) for tool in named))


@dataclass(frozen=True, slots=True)
class Item:
    """A part of a script, and what was decided about it. Offsets are characters."""

    kind: str
    """`command`, `write` or `unknown`."""
    text: str
    start: int
    end: int
    decision: Decision
    part: Command | Write | Unknown
    """What was found there."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision, and how it came about."""

    decision: Decision
    items: tuple[Item, ...] = ()
    """Empty where no rule looks into the script, or there is none."""
    rates: tuple[Rate, ...] = ()
    """What an allowed call has to keep within."""
    script: Script | None = field(default=None, repr=False)
    """What was found in the script, of which the items were judged; None as for these."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Everything in a policy that judges."""

    rules: tuple[Rule, ...]
    """In the order in which they are asked; see `by_precedence`."""
    default: Decision
    """What holds where no rule applies."""
    unknown: Decision
    """What holds for what can't be told before it runs."""
    protected: Protected = NOTHING_PROTECTED
    protects: Decision = field(default_factory=lambda: Decision(Verdict.DENY, "protect"))
    rate: Rate | None = None
    judges_paths: bool = False
    """Whether there is any rule for paths."""


_RANK = {Verdict.DENY: 0, Verdict.ASK: 1, Verdict.ALLOW: 2}


def by_precedence(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules in the order in which they are asked: the strictest verdict first."""
    return tuple(sorted(rules, key=lambda rule: _RANK[rule.decision.verdict]))


def judge(
    rules: RuleSet,
    tool: str,
    arguments: Mapping[str, Any],
    canonical: str | None = None,
    resolved: str | None = None,
) -> Judgement:
    """What the rules say about a call.

    Args:
        rules: The rules.
        tool: The tool's name, in any case.
        arguments: Its decoded input, in the order of its schema.
        canonical: The same as JSON, where that is at hand.
        resolved: Where its path leads in the container, where somebody asked.
    """
    try:
        subject = Subject(tool, arguments, canonical, resolved)
    except NotJson:
        return Judgement(UNREADABLE)
    if subject.tool in CHANGES_FILES:
        for path in subject.paths:
            if rules.protected.covers(path.decode()):
                return Judgement(_protects(rules, path.decode()))
    if rules.judges_paths and any(looks_encoded(path) for path in subject.paths):
        return Judgement(ENCODED)
    by_call: Rule | None = None
    about_items = []
    for rule in rules.rules:
        if rule.is_about_items:
            if rule.is_for(subject.tool):
                about_items.append(rule)
        elif by_call is None and rule.applies(subject):
            by_call = rule
    decision = rules.default if by_call is None else by_call.decision
    items: tuple[Item, ...] = ()
    found: Script | None = None
    if about_items and (by_call is None or by_call.decision.verdict is not Verdict.DENY):
        script = arguments.get(SCRIPT)
        if isinstance(script, str):
            applying = [rule for rule in about_items if rule.applies(subject)]
            judging = _Items(rules, applying, decision, script)
            found = analyse(script, start_of(subject))
            items = judging.all(found)
            decision = _strictest(items, by_call, rules)
    return Judgement(decision, items, _rates(rules, decision, by_call, items), found)


def start_of(subject: Subject) -> Start:
    """Where and as whom the call's script starts."""
    arguments = subject.arguments
    directory, user = arguments.get(DIRECTORY), arguments.get(USER)
    variables = arguments.get(VARIABLES)
    used = subject.tool in USED_SHELLS
    if directory is None and user is None and not variables and not used:
        return PLAIN_START
    return Start(
        directory=directory if isinstance(directory, str) else None,
        user=user if isinstance(user, str) else None,
        variables=variables if isinstance(variables, Mapping) else {},
        used=used,
    )


def _strictest(items: Sequence[Item], by_call: Rule | None, rules: RuleSet) -> Decision:
    """The decision of the call; of equals one that counts against a rate, then the first."""
    decisions = [item.decision for item in items]
    if by_call is not None:
        decisions.append(by_call.decision)
    rated = {rule.decision.rule for rule in rules.rules if rule.rate}
    return min(
        decisions,
        key=lambda decision: (_RANK[decision.verdict], decision.rule not in rated),
        default=rules.default,
    )


def _rates(
    rules: RuleSet, decision: Decision, by_call: Rule | None, items: Sequence[Item]
) -> tuple[Rate, ...]:
    if decision.verdict is Verdict.DENY:
        return ()
    names = {item.decision.rule for item in items}
    if by_call is not None:
        names.add(by_call.decision.rule)
    limited = [rule.rate for rule in rules.rules if rule.rate and rule.decision.rule in names]
    return (*([rules.rate] if rules.rate else ()), *limited)


def _protects(rules: RuleSet, path: str) -> Decision:
    return _because(rules.protects, f"{path} runs code later, so it is protected")


def _because(decision: Decision, why: str) -> Decision:
    """The same for a stated cause. A question has no words of its own to start with."""
    return replace(decision, reason=f"{decision.reason}: {why}" if decision.reason else why)


class _Items:
    """Judges the parts of one script."""

    def __init__(
        self, rules: RuleSet, about_items: Sequence[Rule], otherwise: Decision, script: str
    ):
        self.rules = rules
        self.about_items = about_items
        self.script = script
        self.otherwise = otherwise
        """What holds for a part that no rule about parts is for."""

    def all(self, script: Script) -> tuple[Item, ...]:
        found = [*self.commands(script.commands)]
        found += [self.write(write) for write in script.writes]
        found += [self.unknown(unknown) for unknown in script.unknown]
        return tuple(sorted(found, key=lambda item: item.start))

    def commands(self, commands: Sequence[Command]) -> Iterator[Item]:
        work = Work()
        known: dict[Command, Decision | None] = {}
        for command in commands:
            same = replace(command, start=0, end=0)
            try:
                if same not in known:
                    known[same] = self._command(command, work)
                decision = known[same]
            except TooMuchWork:
                why = "from here on it takes too long to judge the commands"
                yield self.unknown(Unknown(command.start, commands[-1].end, why))
                return
            # Of a wrapper that only runs what is judged by itself there is nothing to say.
            if decision is not None:
                yield self._item("command", command, decision)

    def _command(self, command: Command, work: Work) -> Decision | None:
        named: Decision | None = None
        matched = False
        for rule in self.about_items:
            pattern = rule.command
            if pattern is None:
                continue
            if rule.decision.verdict is not Verdict.ALLOW:
                if pattern.denies(command, work):
                    return rule.decision
            elif command.must_allow and named is None and pattern.matches(command):
                matched = True
                if pattern.names(command):
                    named = rule.decision
        if named is not None or not command.must_allow:
            return named
        if command.sensitive and (matched or self.otherwise.verdict is not Verdict.DENY):
            why = command.sensitive[0]
            word = command.argv[why.word] if why.word < len(command.argv) else ""
            return self._cannot_tell(f"{_quoted(word)}: {why.why}")
        return self._without_a_rule(f"no rule allows {_quoted(' '.join(command.argv))}")

    def write(self, write: Write) -> Item:
        return self._item("write", write, self._write(write))

    def _write(self, write: Write) -> Decision:
        if self.rules.protected.covers(write.path):
            return _protects(self.rules, write.path)
        for rule in self.about_items:
            if rule.is_about_write(write.path):
                return rule.decision
        if self.otherwise.verdict is Verdict.DENY:
            return self._without_a_rule(f"no rule allows writing {_quoted(write.path)}")
        return self.otherwise

    def unknown(self, unknown: Unknown) -> Item:
        text = self.script[unknown.start : unknown.end]
        decision = self._cannot_tell(f"{_quoted(text)}: {unknown.why}" if text else unknown.why)
        return self._item("unknown", unknown, decision)

    def _cannot_tell(self, why: str) -> Decision:
        decision = self.rules.unknown
        if decision.verdict is Verdict.ALLOW:
            return decision
        return _because(decision, f"can't tell what this does: {why}")

    def _without_a_rule(self, what: str) -> Decision:
        decision = self.otherwise
        return decision if decision.verdict is Verdict.ALLOW else _because(decision, what)

    def _item(self, kind: str, part: Command | Write | Unknown, decision: Decision) -> Item:
        return Item(kind, text_of(part, self.script), part.start, part.end, decision, part)


def text_of(part: Command | Write | Unknown, script: str) -> str:
    """A part as it stands in the script.

    One that comes from the call's other arguments has no place there, and reads as a script
    would have it.
    """
    if part.end == 0 and isinstance(part, Command):
        return shlex.join(part.argv)
    return script[part.start : part.end]


def _quoted(text: str) -> str:
    short = text if len(text) <= QUOTED_CHARACTERS else f"{text[:QUOTED_CHARACTERS]}…"
    return repr(short)
