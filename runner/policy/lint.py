"""What is odd about a policy that loads: rules without effect, and those that give much away.

Every warning is proved, none is guessed: a rule is said to match nothing only where nothing
that it looks at can hold its pattern, to decide nothing only where a rule before it decides
all that it could, and to hand out a program only where it allows a command that is at hand.
That a rule draws no warning proves nothing: what the proof does not cover, or has no time left
for, goes without.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.model import Verdict
from runner.policy import language, programs
from runner.policy.acts import SCRIPT
from runner.policy.commands import CommandPattern
from runner.policy.document import ConditionText, Document, Mode, RuleText
from runner.policy.language import Alternative, Beyond, Budget, Chars, Edge, Series, Shape
from runner.policy.matching import PATH, Pattern, PatternError
from runner.policy.shapes import (
    ALLOWED_COMMAND,
    ANY_FORM,
    EXTENDED,
    FIELDS,
    FORMS,
    GIVEN_PATH,
    PATHS,
    REFUSED_COMMAND,
    Form,
)
from runner.policy.shell import analyse

MAX_STEPS = 2_000_000
"""What the proofs for one policy may take, some seconds; a real policy takes a thousandth."""
HTTPS_PORT = 443
STEPS_OF_COMPARISON = 20
"""What it takes to compare two rules with each other."""


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
    tool: str
    """Without regard to case; empty for any."""
    form: Form
    pattern: Pattern | None
    parts: tuple[Alternative, ...] = ()
    """Empty where there is no pattern, or it can't be judged."""

    @property
    def always_matches(self) -> bool:
        """Whether the pattern is found in what every call's JSON starts with, whatever follows."""
        if any(condition.key != "match" for condition in self.text.conditions):
            return False
        if self.pattern is None:
            return True
        return (
            bool(self.parts)
            and all(part.open_ended for part in self.parts)
            and self.pattern.found_in(self.form.opening.encode())
        )

    def warn(self, message: str) -> PolicyWarning:
        return PolicyWarning(self.text.line, self.text.name, message)


def warnings(
    document: Document,
    patterns: Mapping[str, Pattern],
    commands: Mapping[str, CommandPattern],
) -> tuple[PolicyWarning, ...]:
    """What to tell the writer of this policy, in the order of its lines.

    Args:
        document: The policy.
        patterns: The compiled `match` of each rule that has one, by the rule's name.
        commands: The same of each `command`.
    """
    found = [*_unused(document), *_unseen(document)]
    if document.mode is Mode.PATTERN:
        budget = Budget(MAX_STEPS)
        rules = [
            _judge(rule, tool.casefold(), patterns.get(rule.name), budget)
            for rule in document.rules
            for tool in rule.tools or ("",)
        ]
        for rule in rules:
            found += _unknown_tool(rule)
            found += _never_matches(rule, budget)
            found += _never_holds(rule, budget)
        never_asked = list(_shadowed(rules))
        found += never_asked
        told = {warning.rule for warning in never_asked}
        found += _never_decides([rule for rule in document.rules if rule.name not in told], budget)
        for rule_text in document.rules:
            found += _hands_out(rule_text, commands.get(rule_text.name), budget)
    return tuple(sorted(found, key=lambda warning: warning.line))


def _judge(rule: RuleText, tool: str, pattern: Pattern | None, budget: Budget) -> _Rule:
    form = FORMS.get(tool, ANY_FORM)
    if pattern is None:
        return _Rule(rule, tool, form, None)
    try:
        return _Rule(rule, tool, form, pattern, language.alternatives(pattern.text, budget))
    except Beyond:
        return _Rule(rule, tool, form, pattern)


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


def _unseen(document: Document) -> Iterator[PolicyWarning]:
    """Rules about requests for a port whose connections hide them."""
    for rule in document.network.rules:
        if not (rule.methods or rule.paths):
            continue
        if rule.ports is not None and HTTPS_PORT not in rule.ports:
            continue
        does = "allows nothing" if rule.verdict is Verdict.ALLOW else "refuses every connection"
        yield PolicyWarning(
            rule.line,
            rule.name,
            f"requests on port {HTTPS_PORT} are seen only for hosts that the setting `intercept`"
            f" names; for any other, this rule {does} there",
        )


def _unknown_tool(rule: _Rule) -> Iterator[PolicyWarning]:
    if rule.tool and rule.tool not in FORMS and rule.tool not in EXTENDED:
        yield rule.warn(
            f"no built-in tool is called {rule.tool!r} (they are {', '.join(FORMS)}); "
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


# --- rules that others decide for

_ORDER = {Verdict.DENY: 0, Verdict.ASK: 1, Verdict.ALLOW: 2}
_WOULD = {Verdict.DENY: "refuse", Verdict.ASK: "ask about", Verdict.ALLOW: "allow"}
_DOES = {Verdict.DENY: "refuses", Verdict.ASK: "asks about", Verdict.ALLOW: "allows"}
_ABOUT_ITEMS = frozenset([("command", ""), ("redirect", "")])


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a rule is for, at hand for being compared with that of others."""

    rule: RuleText
    tools: frozenset[str]
    """Empty for any."""
    kinds: frozenset[tuple[str, str]]
    """Of its conditions: the key, and the field's name."""

    @classmethod
    def of(cls, rule: RuleText) -> "_Scope":
        return cls(
            rule,
            frozenset(tool.casefold() for tool in rule.tools),
            frozenset((condition.key, condition.field) for condition in rule.conditions),
        )

    @property
    def is_about_items(self) -> bool:
        return not self.kinds.isdisjoint(_ABOUT_ITEMS)

    def holds_all_of(self, other: "_Scope") -> bool:
        """Whether what `other`, which is asked later, is for is certain to be in here."""
        if not self.kinds <= other.kinds:
            return False
        if self.tools and not (other.tools and self.tools >= other.tools):
            return False
        # Who refuses a whole call refuses its parts; any other leaves them to their own rules.
        refuses_calls = self.rule.verdict is Verdict.DENY and not self.is_about_items
        if not refuses_calls and self.is_about_items != other.is_about_items:
            return False
        of = (self.rule.verdict, other.rule.verdict)
        return all(
            any(_implies(narrow, wide, of) for narrow in other.rule.conditions)
            for wide in self.rule.conditions
        )


def _never_decides(rules: Sequence[RuleText], budget: Budget) -> Iterator[PolicyWarning]:
    """Rules that can't decide anything: one that is asked before is for all that they are for."""
    scopes = [_Scope.of(rule) for rule in sorted(rules, key=lambda rule: _ORDER[rule.verdict])]
    for place, scope in enumerate(scopes):
        try:
            budget.spend(place * STEPS_OF_COMPARISON)
        except Beyond:
            return
        before = next((other for other in scopes[:place] if other.holds_all_of(scope)), None)
        if before is not None:
            wider, rule = before.rule, scope.rule
            yield PolicyWarning(
                rule.line,
                rule.name,
                f"never decides: {wider.name} in line {wider.line} is asked before it, and "
                f"{_DOES[wider.verdict]} all that this would {_WOULD[rule.verdict]}",
            )


def _implies(narrow: ConditionText, wide: ConditionText, of: tuple[Verdict, Verdict]) -> bool:
    """Whether `wide` holds wherever `narrow` does; `of` are the verdicts of their rules."""
    if (narrow.key, narrow.field) != (wide.key, wide.field):
        return False
    if narrow.text == wide.text:
        # A quote may stand for a blank in a program's name, which only refusals look at.
        return narrow.key != "command" or "'" not in narrow.text
    wide_verdict, verdict = of
    match narrow.key:
        case "command":
            if wide_verdict is Verdict.ALLOW:
                return False  # it also has to name the same words
            return _refuses_all(wide.text, narrow.text, is_allow=verdict is Verdict.ALLOW)
        case "glob" | "redirect":
            directory = wide.text.removesuffix("/**")
            is_whole = directory != wide.text and not re.search(r"[*?\[\\]", directory)
            return is_whole and f"{narrow.text}/".startswith(f"{directory}/")
    return False


_PLAIN_TEXT = re.compile(r"\^?((?:[A-Za-z0-9_/ -]|\\[.+-])+)")
_WORD_ENDS_HERE = re.compile(r"(?:\\b|\$|\\z)?\Z|\\s(?![*?{])")


@dataclass(frozen=True, slots=True)
class _Start:
    """An alternative of a pattern for commands, as far as it is plain text from the start."""

    text: str
    after: str
    """The rest of the pattern."""
    ends_word: bool
    """Whether a word of the command is certain to end after the text."""


@functools.lru_cache(maxsize=2048)
def _starts(pattern: str) -> tuple[_Start, ...]:
    """The alternatives of a pattern; none where it can't be read."""
    try:
        parts = language.alternatives(pattern, Budget(len(pattern)))
    except Beyond:
        return ()
    starts = []
    for part in parts:
        found = _PLAIN_TEXT.match(part.text)
        if found is None:
            starts.append(_Start("", part.text, ends_word=False))
            continue
        text, after = found[1].replace("\\", ""), part.text[found.end() :]
        if after[:1] in ("*", "?", "{"):
            text, after = text[:-1], "."  # its last character need not be there
        starts.append(_Start(text, after, bool(_WORD_ENDS_HERE.match(after))))
    return tuple(starts)


def _refuses_all(wide: str, narrow: str, *, is_allow: bool) -> bool:
    """Whether a refusal of `wide` is one of every command that `narrow` is for.

    Both are read as far as they are plain text: a refusal needs only the start of a command.
    """
    refused, meant = _starts(wide), _starts(narrow)
    if "(?" in narrow or not meant:
        return False
    return all(any(_is_start(start, of, is_allow) for start in refused) for of in meant)


def _is_start(start: _Start, of: _Start, is_allow: bool) -> bool:
    """Whether a refusal of `start` alone is one of all that `of` is for, program and all."""
    if start.after not in ("", "\\b") or not start.text or not of.text.startswith(start.text):
        return False
    rest = of.text[len(start.text) :]
    ends_word = rest.startswith(" ") or (not rest and of.ends_word)
    if start.after and not (ends_word and start.text[-1].isalnum()):
        return False
    if not is_allow:
        # Refusals write a command in many ways, one of them for programs with a blank in their
        # name. So only the same program alone is certain to be the same.
        return ends_word and " " not in of.text
    return (ends_word or " " in start.text.strip()) and not start.text.startswith("git -")


# --- programs that run others

_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"git"),
        "git runs programs that the hooks and the configuration of a repository name",
    ),
    (
        re.compile(
            r"(?:g|c)?make|ninja|meson|scons|bazel|rake|just|task|invoke|nox|tox|pytest|npm|npx|yarn"
            r"|pnpm|jest|gulp|grunt|cargo|go|gradlew?|mvnw?|ant|sbt|bundle|composer|poetry|uv|pip[\d.]*"
        ),
        "it runs what files of the workspace say, and whoever may write there writes those, too",
    ),
    (
        re.compile(
            r"python[\d.]*|pypy[\d.]*|perl[\d.]*|ruby[\d.]*|node|nodejs|deno|bun|php[\d.]*|lua[\d.]*"
            r"|Rscript|julia|java|(?:ba|da|z|k|c|tc|fi)?sh"
        ),
        "an interpreter runs any code that it is given, and no rule sees what that does",
    ),
)
"""Programs, and why to allow them is to allow much. For others, what the analysis says."""


def _hands_out(
    rule: RuleText, pattern: CommandPattern | None, budget: Budget
) -> Iterator[PolicyWarning]:
    """Allow rules that name a program which runs code from somewhere else."""
    if rule.verdict is not Verdict.ALLOW or rule.justification or pattern is None:
        return
    told = set()
    for sample in _samples(pattern.text, budget):
        script = analyse(sample)
        if script.unknown or script.writes or len(script.commands) != 1:
            continue
        (command,) = script.commands
        program = command.argv[0]
        runs_code = [word for word in command.sensitive if word.word == 0 or program == "git"]
        if not runs_code or not pattern.names(command):
            continue
        kinds = (kind for of_kind, kind in _KINDS if of_kind.fullmatch(program))
        why = next(kinds, runs_code[0].why)
        if why in told:
            continue
        told.add(why)
        yield PolicyWarning(
            rule.line,
            rule.name,
            f"hands out `{sample}`: {why}; if it is needed, say why in the rule's "
            "`justification`, and this warning goes",
        )


def _samples(pattern: str, budget: Budget) -> Iterator[str]:
    try:
        for part in language.alternatives(pattern, budget):
            for sample in language.samples(part.node):
                budget.spend(len(sample))
                yield sample.strip()
    except Beyond:
        return


# --- conditions that never hold

_LOOKS_AT = {"command": SCRIPT, "redirect": SCRIPT, "path": PATH, "glob": PATH}
"""Which argument a condition looks at. A `field` says so itself; others look at all."""
_BLANK_LAST = re.compile(r"(?: |\\s)[+]?\Z")
_MANY_LINES = re.compile(r"\(\?[a-zA-Z]*m")


def _never_holds(rule: _Rule, budget: Budget) -> Iterator[PolicyWarning]:
    whose = f" a {rule.tool} call" if len(rule.text.tools) > 1 else ""
    for condition in rule.text.conditions:
        why = _lacks_argument(rule, condition)
        if why:
            yield rule.warn(f"never matches{whose}: {why}")
            return
        for part, is_all, why in _never_found(rule, condition, budget):
            if is_all:
                yield rule.warn(f"never matches{whose}: {why}")
            else:
                yield rule.warn(f"its alternative {part} never matches{whose}: {why}")


def _lacks_argument(rule: _Rule, condition: ConditionText) -> str:
    looked_at, _, inner = condition.field.partition(".")
    looked_at = _LOOKS_AT.get(condition.key, looked_at)
    if not looked_at or rule.tool not in FIELDS:
        return ""
    kinds = dict(FIELDS[rule.tool].required + FIELDS[rule.tool].optional)
    if looked_at not in kinds:
        return (
            f"`{condition.key}` looks at the argument `{looked_at}`, and {rule.tool} calls have "
            f"{' and '.join(f'`{name}`' for name in kinds)} only"
        )
    if inner and kinds[looked_at] != "object":
        kind = kinds[looked_at]
        return f"the argument `{looked_at}` of {rule.tool} calls is a {kind}, with nothing in it"
    return ""


def _never_found(
    rule: _Rule, condition: ConditionText, budget: Budget
) -> Iterator[tuple[str, bool, str]]:
    """Alternatives of a pattern that nothing can hold, whether they are all of it, and why."""
    is_allow = rule.text.verdict is Verdict.ALLOW
    before: tuple[language.Node, ...] = ()
    after: tuple[language.Node, ...] = ()
    match condition.key:
        case "command" if is_allow and _BLANK_LAST.search(condition.text):
            return  # what it allows is not what it says to the letter; see `commands`
        case "command":
            shape = ALLOWED_COMMAND if is_allow else REFUSED_COMMAND
            before = (Edge.START,)
            after = (_WORD_ENDS,) if is_allow else ()
        case "path" if rule.tool in FIELDS:
            shape = PATHS
        case "field" if rule.tool in FIELDS and condition.field == PATH:
            shape = GIVEN_PATH
        case _:
            return
    if condition.key != "command" and _MANY_LINES.search(condition.text):
        return  # a path may hold line feeds, and `^` would stand after each
    try:
        parts = language.alternatives(condition.text, budget)
        dead = []
        for part in parts:
            node = Series((*before, part.node, *after))
            if _is_of_the_system(part.text, condition) or not shape.can_hold(node, budget):
                dead.append(part)
    except Beyond:
        return
    if len(dead) == len(parts):
        yield condition.text, True, _why_never_found(condition, dead[0], is_allow=is_allow)
        return
    for part in dead:
        yield part.text, False, _why_never_found(condition, part, is_allow=is_allow)


_WORD_ENDS = language.Choice((Chars(1 << ord(" ")), Edge.END))
_WITH_DIRECTORY = re.compile(
    r"\^?(/[a-z/]+)/([A-Za-z0-9_-]+)(?:(?:\\b|\$|\\z)?\Z|(?:\\b)?(?:\\s|[ ])(?![*?{]))"
)


def _is_of_the_system(pattern: str, condition: ConditionText) -> bool:
    """Whether it writes out the directory of a program that is known by its name alone."""
    found = _WITH_DIRECTORY.match(pattern) if condition.key == "command" else None
    return found is not None and found[1] in programs.SYSTEM_DIRECTORIES


def _why_never_found(condition: ConditionText, part: Alternative, *, is_allow: bool) -> str:
    if (control := _CONTROL.search(part.text)) and condition.key == "command":
        name = _CONTROL_NAMES.get(control[0], f"control character U+{ord(control[0]):04X}")
        return (
            f"there is a {name} in it; YAML makes them of \\b in double quotes, so use single ones"
        )
    match condition.key:
        case "command" if found := _WITH_DIRECTORY.match(part.text):
            return f"a program of the system is known by its name alone; write '^{found[2]}'"
        case "command":
            ends = ", and has to end where a word does" if is_allow else ""
            return (
                "it is compared with the words of one command from the program on, a blank "
                f"between them, as in git log -p{ends}"
            )
        case "path":
            return (
                "it is compared with an absolute path that has no . and .. and // in it and no "
                "slash at its end, such as /workspace/a"
            )
    return "the path of a call starts with /, such as /workspace/a"


# --- patterns that match nothing in the JSON


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
