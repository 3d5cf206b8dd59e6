"""How a policy comes to what it says about a call: each part of the call, each rule in its turn.

Decides nothing. The decision is `Policy.judge`'s; beside it stand the rules as they were asked,
which is found by asking them once more, in the same order. Nor does it print: whoever shows an
explanation has the offsets of each part.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, assert_never

from runner.model import Decision, Verdict
from runner.policy.acts import SCRIPT
from runner.policy.matching import (
    AnyTextMatches,
    Condition,
    FieldMatches,
    JsonMatches,
    PathMatches,
    Subject,
)
from runner.policy.paths import Glob
from runner.policy.policy import Policy
from runner.policy.rules import Item, Rule, text_of
from runner.policy.shell import Command, Script, Unknown, Write


class Answer(StrEnum):
    """What a rule says when it is asked about a part of a call."""

    FITS = "fits"
    UNNAMED = "unnamed"
    """It would fit, but allows no word that it does not name, and here is one."""
    NO = "no"


@dataclass(frozen=True, slots=True)
class Asked:
    """A rule that was asked."""

    rule: str
    """Its name, such as `deny[0]`."""
    line: int
    verdict: Verdict
    """What it says where it fits."""
    answer: Answer
    what: str
    """What it looks for; after an `unnamed` or a `no`, why that is not here."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the script to look at. Offsets are characters."""

    start: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """The call as a whole, or a part of its script, with what was decided about it."""

    kind: str
    """`call`, `command`, `write` or `unknown`."""
    text: str
    """As it stands in the script; the path, for a file that is written."""
    start: int
    end: int
    decision: Decision | None
    """None where it has none of its own: a wrapper, whose inner command is what counts, or a
    call of which no rule about whole calls is for."""
    words: tuple[str, ...] = ()
    """Of a command: the program and its arguments, as they would arrive there."""
    asked: tuple[Asked, ...] = ()
    """The rules for it in their order, down to the one that decided. Rules for other tools
    are left out."""
    marks: tuple[Mark, ...] = ()
    """What nobody can tell, and words that an allow rule has to name."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision, and how it came about."""

    policy: str
    digest: str
    tool: str
    arguments: Mapping[str, Any]
    resolved: str | None
    """Where the call's path leads, as the caller said."""
    decision: Decision
    """`Policy.judge`'s."""
    script: str
    """What the offsets are of; empty where no rule looked into it."""
    parts: tuple[Part, ...]
    """The call first, where rules about whole calls were asked."""

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def explain(
    policy: Policy, tool: str, arguments: Mapping[str, Any], *, resolved: str | None = None
) -> Explanation:
    """Why a policy says what it says about a call. Pure, and never an error.

    Args:
        policy: The policy.
        tool: The tool's name; case does not matter.
        arguments: The decoded input, in the order of the tool's schema.
        resolved: Where the call's path leads in the container; None where it leads to itself.
    """
    judgement = policy.judge(tool, arguments, resolved=resolved)
    parts: list[Part] = []
    script = ""
    asks_rules = judgement.items or judgement.decision.rule not in _BEFORE_ANY_RULE
    if policy.rule_set is not None and asks_rules:
        subject = Subject(tool, arguments, None, resolved)
        rules = [rule for rule in policy.rules if rule.is_for(subject.tool)]
        parts.append(_about_call(rules, subject))
        if judgement.script is not None:
            script = arguments[SCRIPT]
            parts += _about_items(rules, subject, script, judgement.script, judgement.items)
    return Explanation(
        policy=policy.name,
        digest=policy.digest,
        tool=tool,
        arguments=arguments,
        resolved=resolved,
        decision=judgement.decision,
        script=script,
        parts=tuple(parts),
    )


_BEFORE_ANY_RULE = ("input", "protect")
"""Decisions about a call that no rule was asked about."""


def _about_call(rules: Sequence[Rule], subject: Subject) -> Part:
    asked = []
    decision = None
    for rule in rules:
        if rule.is_about_items:
            continue
        asked.append(_ask(rule, subject))
        if asked[-1].answer is Answer.FITS:
            decision = rule.decision
            break
    return Part("call", "", 0, 0, decision, asked=tuple(asked))


def _about_items(
    rules: Sequence[Rule], subject: Subject, script: str, found: Script, items: Sequence[Item]
) -> Iterator[Part]:
    about_items = [rule for rule in rules if rule.is_about_items]
    decisions = {item.part: item.decision for item in items}
    # Judging may have stopped, at a part that is in the items only.
    everything = dict.fromkeys((*found.commands, *found.writes, *found.unknown, *decisions))
    for part in sorted(everything, key=lambda part: part.start):
        text = text_of(part, script)
        match part:
            case Command():
                if part.must_allow and part not in decisions:
                    continue  # judging had stopped
                yield Part(
                    kind="command",
                    text=text,
                    start=part.start,
                    end=part.end,
                    decision=decisions.get(part),
                    words=part.argv,
                    asked=_ask_about_command(about_items, subject, part),
                    marks=tuple(_words_to_name(part, script)),
                )
            case Write():
                decision = decisions[part]
                asked = (
                    ()
                    if decision.rule == "protect"
                    else _ask_about_write(about_items, subject, part)
                )
                yield Part("write", part.path, part.start, part.end, decision, asked=asked)
            case Unknown():
                mark = Mark(part.start, part.end, part.why)
                yield Part("unknown", text, part.start, part.end, decisions[part], marks=(mark,))
            case _:
                assert_never(part)


def _words_to_name(command: Command, script: str) -> Iterator[Mark]:
    for word in command.sensitive:
        start, end = command.start, command.end
        text = command.argv[word.word] if word.word < len(command.argv) else ""
        # Without its quotes a word may not be there; then the command is pointed at.
        if text and (at := re.search(rf"(?<!\S){re.escape(text)}(?!\S)", script[start:end])):
            start, end = start + at.start(), start + at.end()
        yield Mark(start, end, word.why)


# --- asking


def _ask(rule: Rule, subject: Subject) -> Asked:
    what = ", ".join(_described(condition) for condition in rule.conditions)
    if rule.applies(subject):
        return _answer(rule, Answer.FITS, what or "any call")
    for seen in (subject, *subject.acts):
        for condition in rule.conditions:
            if not condition.holds(seen):
                return _answer(rule, Answer.NO, _why_not(condition, seen))
    return _answer(rule, Answer.NO, f"{what} is silent on what stands beside the script")


def _ask_about_command(
    rules: Sequence[Rule], subject: Subject, command: Command
) -> tuple[Asked, ...]:
    asked = []
    for rule in rules:
        pattern = rule.command
        if pattern is None:
            continue
        answer = _ask(rule, subject)
        if answer.answer is Answer.FITS:
            what = f"command {_quoted(pattern.text)}"
            if rule.decision.verdict is not Verdict.ALLOW:
                fits = Answer.FITS if pattern.denies(command) else Answer.NO
            elif not command.must_allow:
                continue  # what it runs is asked about
            elif not pattern.matches(command):
                fits = Answer.NO
            elif pattern.names(command):
                fits = Answer.FITS
            else:
                fits = Answer.UNNAMED
                words = [command.argv[word.word] for word in command.sensitive]
                what += f" does not name {' and '.join(map(_quoted, words))}"
            answer = _answer(rule, fits, what)
        asked.append(answer)
        if answer.answer is Answer.FITS:
            break
    return tuple(asked)


def _ask_about_write(rules: Sequence[Rule], subject: Subject, write: Write) -> tuple[Asked, ...]:
    asked = []
    for rule in rules:
        if rule.redirect is None:
            continue
        answer = _ask(rule, subject)
        if answer.answer is Answer.FITS:
            fits = rule.is_about_write(write.path)
            what = f"redirect {_quoted(rule.redirect.text)}"
            answer = _answer(rule, Answer.FITS if fits else Answer.NO, what)
        asked.append(answer)
        if answer.answer is Answer.FITS:
            break
    return tuple(asked)


def _answer(rule: Rule, answer: Answer, what: str) -> Asked:
    decision = rule.decision
    return Asked(decision.rule or "", rule.line, decision.verdict, answer, what)


# --- words


def _described(condition: Condition) -> str:
    match condition:
        case JsonMatches(pattern):
            return f"match {_quoted(pattern.text)}"
        case AnyTextMatches(pattern):
            return f"anywhere {_quoted(pattern.text)}"
        case FieldMatches(name, pattern):
            return f"field {name} {_quoted(pattern.text)}"
        case PathMatches(test):
            key = "glob" if isinstance(test, Glob) else "path"
            return f"{key} {_quoted(test.text)}"
    return type(condition).__name__


def _why_not(condition: Condition, subject: Subject) -> str:
    what = _described(condition)
    if not isinstance(condition, PathMatches):
        return what
    if not subject.paths:
        return f"{what}: the call has no path"
    others = [path for path in subject.paths if not condition.test.found_in(path)]
    return f"{what} does not fit {' and '.join(path.decode() for path in others)}"


def _quoted(text: str) -> str:
    return f"'{text}'"
