"""What is odd about a policy that loads: rules without effect, and why they have none.

Every warning is proved, none is guessed: a rule is said to match nothing only where no
call's JSON can hold its pattern. That a rule draws no warning proves nothing: what the
proof does not cover, or has no time left for, goes without.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.model import Verdict
from runner.policy import language
from runner.policy.document import Document, Mode, RuleText
from runner.policy.language import Alternative, Beyond, Budget, Edge, Shape
from runner.policy.matching import Pattern, PatternError
from runner.policy.shapes import ANY_FORM, FORMS, Form

MAX_STEPS = 2_000_000
"""What the proofs for one policy may take, some seconds; a real policy takes a thousandth."""


@dataclass(frozen=True, slots=True)
class PolicyWarning:
    """Something in a policy that has another effect than it seems to have, or none."""

    line: int
    """1-based."""
    rule: str
    """Such as `deny[0]`, `default` or `mode`."""
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule with what is known of its pattern."""

    text: RuleText
    form: Form
    pattern: Pattern | None
    parts: tuple[Alternative, ...] = ()
    """Empty where there is no pattern, or it can't be judged."""

    @property
    def tool(self) -> str:
        return self.text.tool.casefold()

    @property
    def always_matches(self) -> bool:
        """Whether the pattern is found in what every call's JSON starts with, whatever follows."""
        if self.pattern is None:
            return True
        return (
            bool(self.parts)
            and all(part.open_ended for part in self.parts)
            and self.pattern.found_in(self.form.opening.encode())
        )

    def warn(self, message: str) -> PolicyWarning:
        return PolicyWarning(self.text.line, self.text.name, message)


def warnings(document: Document, patterns: Mapping[str, Pattern]) -> tuple[PolicyWarning, ...]:
    """What to tell the writer of this policy, in the order of its lines.

    Args:
        document: The policy.
        patterns: The compiled pattern of each rule that has one, by the rule's name.
    """
    found = [*_unused(document)]
    if document.mode is Mode.PATTERN:
        budget = Budget(MAX_STEPS)
        rules = [_judge(rule, patterns.get(rule.name), budget) for rule in document.rules]
        for rule in rules:
            found += _unknown_tool(rule)
            found += _never_matches(rule, budget)
        found += _shadowed(rules)
    return tuple(sorted(found, key=lambda warning: warning.line))


def _judge(rule: RuleText, pattern: Pattern | None, budget: Budget) -> _Rule:
    form = FORMS.get(rule.tool.casefold(), ANY_FORM)
    if pattern is None:
        return _Rule(rule, form, None)
    try:
        return _Rule(rule, form, pattern, language.alternatives(rule.match, budget))
    except Beyond:
        return _Rule(rule, form, pattern)


# --- parts that are not looked at


def _unused(document: Document) -> Iterator[PolicyWarning]:
    if document.mode is not Mode.PATTERN:
        unread = ["`default`"] if document.default_line is not None else []
        unread += ["the rules"] if document.rules else []
        if unread:
            yield PolicyWarning(
                document.mode_line,
                "mode",
                f"in mode {document.mode} nothing reads {' and '.join(unread)}; for that, "
                'write "mode: pattern"',
            )
    elif document.default is Verdict.ALLOW and document.default_line is not None:
        allows = [rule.name for rule in document.rules if rule.verdict is Verdict.ALLOW]
        if allows:
            yield PolicyWarning(
                document.default_line,
                "default",
                "every call that no deny rule refuses is allowed, so the allow rules change "
                'nothing; to allow only what they name, write "default: deny"',
            )


def _unknown_tool(rule: _Rule) -> Iterator[PolicyWarning]:
    if rule.tool and rule.tool not in FORMS:
        yield rule.warn(
            f"no built-in tool is called {rule.text.tool!r} (they are {', '.join(FORMS)}); "
            "right for a tool of your own"
        )


def _shadowed(rules: Sequence[_Rule]) -> Iterator[PolicyWarning]:
    """Rules that are never asked: a deny rule before them refuses the tool altogether."""
    refused: dict[str, _Rule] = {}
    denies = [rule for rule in rules if rule.text.verdict is Verdict.DENY]
    others = [rule for rule in rules if rule.text.verdict is not Verdict.DENY]
    for rule in [*denies, *others]:  # as they are asked
        if before := refused.get("") or refused.get(rule.tool):
            calls = f"{before.tool} call" if before.tool else "call"
            yield rule.warn(
                f"never asked: {before.text.name} in line {before.text.line} refuses every "
                f"{calls}, and deny rules come first"
            )
        elif rule.text.verdict is Verdict.DENY and rule.always_matches:
            refused[rule.tool] = rule


# --- patterns that match nothing


def _never_matches(rule: _Rule, budget: Budget) -> Iterator[PolicyWarning]:
    try:
        dead = [part for part in rule.parts if not rule.form.shape.can_hold(part.node, budget)]
        for part in dead:
            why = _why(part, rule, budget)
            if len(rule.parts) == 1:
                yield rule.warn(f"never matches: {why}")
            else:
                yield rule.warn(f"its alternative {part.text} never matches: {why}")
    except Beyond:
        return


_CONTROL = re.compile(r"[\x00-\x1f]")
_CONTROL_NAMES = {"\b": "backspace", "\t": "tab", "\n": "line feed", "\r": "carriage return"}


def _why(part: Alternative, rule: _Rule, budget: Budget) -> str:
    form = rule.form
    calls = "calls" if form is ANY_FORM else f"{rule.tool} calls"

    def could(shape: Shape, *ignoring: Edge) -> bool:
        return shape.can_hold(part.node, budget, ignoring=ignoring)

    if control := _CONTROL.search(part.text):
        name = _CONTROL_NAMES.get(control[0], f"control character U+{ord(control[0]):04X}")
        return (
            f"there is a {name} in it, and JSON has none; YAML makes them of \\b, \\t and \\n in "
            "double quotes, and of the line ends of a | block, so use single quotes"
        )
    if could(form.shape, Edge.START):
        why = f"^ is the start of the JSON of the call, and that of {calls} starts {form.opening}"
    elif could(form.shape, Edge.END):
        why = f"$ is the end of the JSON of the call, which is }}, as in {form.example}"
    elif could(form.shape, Edge.START, Edge.END):
        why = f"^ and $ are the ends of the JSON of the call, such as {form.example}"
    elif could(form.unescaped, Edge.START, Edge.END):
        return (
            "it asks for a control character, and JSON has none: it writes a line feed as two "
            "characters, which a pattern matches with \\\\n"
        )
    else:
        return (
            f"the JSON of {calls} has no space after : and , and its fields in the order of the "
            f"tool's schema, and writes a quote inside a value as \\\"; it is like {form.example}"
        )
    suggestion = _rewrite(part, form, budget)
    if suggestion is None:
        return why
    quoted = suggestion.replace("'", "''")
    return f"{why}; write '{quoted}'"


_AT_START = re.compile(r"((?:\(\?[imsU]+\))?)(?:\^|\\A)")
_AT_END = re.compile(r"(?<!\\)(?:\\\\)*(\$|\\z)\Z")


def _rewrite(part: Alternative, form: Form, budget: Budget) -> str | None:
    """The same with its ends moved to those of the first field, if that can match at all."""
    flags, body = "", part.text
    starts, ends = [""], [""]
    if start := _AT_START.match(body):
        flags, body = start[1], body[start.end() :]
        opening = form.opening if form is not ANY_FORM else '{"[^"]*":"'
        starts = [f"^{opening.replace('{', chr(92) + '{', 1)}", "^\\{"]
    if end := _AT_END.search(body):
        body = body[: end.start(1)]
        ends = ['"\\}$', "\\}$"]
    for before in starts:
        for after in ends:
            candidate = f"{flags}{before}{body}{after}"
            if _can_match(candidate, form, budget):
                return candidate
    return None


def _can_match(pattern: str, form: Form, budget: Budget) -> bool:
    try:
        Pattern.compile(pattern)
        parts = language.alternatives(pattern, budget)
        return all(form.shape.can_hold(part.node, budget) for part in parts)
    except (PatternError, Beyond):
        return False
