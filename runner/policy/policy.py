"""`Policy`: a file made into a value that judges calls, and where policies come from."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from runner.assets import asset_dir
from runner.errors import PolicyError
from runner.model import Decision, Verdict
from runner.policy import document as documents
from runner.policy import lint
from runner.policy.commands import CommandPattern
from runner.policy.document import (
    ConditionText,
    Document,
    ExampleText,
    Mode,
    RateText,
    RuleText,
)
from runner.policy.lint import PolicyWarning
from runner.policy.matching import (
    MAX_PATTERN_MEMORY_BYTES,
    AnyTextMatches,
    Condition,
    FieldMatches,
    JsonMatches,
    NotJson,
    PathMatches,
    Pattern,
    PatternError,
    Subject,
)
from runner.policy.network import NetworkRules, network_rules
from runner.policy.nodes import MAX_DOCUMENT_BYTES, Written
from runner.policy.paths import Glob, Protected
from runner.policy.rules import (
    CHANGES_FILES,
    Judgement,
    Rate,
    Rule,
    RuleSet,
    by_precedence,
    judge,
    with_kin,
)

PATTERNS_MEMORY_BYTES = 256 * 1024**2
"""The most that all patterns of one policy may take together, their caches included."""

_REASONS = {
    Mode.ALLOW_ALL: "",
    Mode.DENY_ALL: "denied by policy",
    Mode.PATTERN: "denied by pattern policy",
}
"""What a denied call is told where the policy has no words of its own."""

_SUFFIX = ".yaml"
MAX_INCLUDED = 20
"""Files that one policy may be made of."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Decides which calls may run. Immutable; one may serve any number of threads.

    Build one with `load`, `parse` or `named`.
    """

    name: str
    """Its name if it is a shipped one, else the path or source that it was read from."""
    digest: str
    """SHA-256 of its source in hex; empty where there is no source."""
    mode: Mode
    default: Decision
    """What holds for a call that no rule decides: every call, where the mode reads no rules."""
    warnings: tuple[PolicyWarning, ...] = ()
    """What has no effect, or another than it seems to have. Worth showing once."""
    rule_set: RuleSet | None = field(default=None, repr=False)
    """All that judges; None where the mode reads no rules."""
    shadow: "Policy | None" = None
    """A second policy that is asked and recorded, and decides nothing."""
    examples: tuple[ExampleText, ...] = ()
    """Calls that this policy was proved to decide as they say."""
    files: tuple[str, ...] = ()
    """What it was read from: its own file, and those it includes or shadows."""
    network: NetworkRules = field(default=NetworkRules(), repr=False)
    """What programs may connect to, in a session that has the network `allowlist` or `open`.
    It holds in every mode."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """In the order in which they are asked. Empty where the mode reads none."""
        return self.rule_set.rules if self.rule_set is not None else ()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a file.

        Args:
            path: UTF-8 text, at most 1 MiB.

        Raises:
            PolicyError: The file can't be read, or is no policy that this version knows. It
                names the file and, where one is to blame, the line and the rule.
        """
        source = os.fspath(path)
        return cls._from_bytes(_read(source), source=source, name=source)

    @classmethod
    def parse(cls, text: str, source: str = "<policy>") -> Self:
        """Read a policy from a text.

        Args:
            text: YAML, as in a file.
            source: What to call it in errors, and as its `name`.

        Raises:
            PolicyError: It is no policy that this version knows.
        """
        content = text.encode(errors="surrogatepass")
        return cls._build(_Source(source, content, text), name=source)

    @classmethod
    def named(cls, name: str) -> Self:
        """A policy that comes with the runner; `shipped` lists their names.

        Raises:
            PolicyError: There is none of that name.
        """
        if name not in cls.shipped():
            raise PolicyError(
                f"no shipped policy has this name; there are {', '.join(cls.shipped())}",
                source=name,
            )
        path = asset_dir("policies") / f"{name}{_SUFFIX}"
        return cls._from_bytes(_read(str(path)), source=str(path), name=name)

    @staticmethod
    def shipped() -> tuple[str, ...]:
        """The names of the policies that come with the runner."""
        files = asset_dir("policies").glob(f"*{_SUFFIX}")
        # A dot in the stem marks what belongs to a policy, such as default.cases.yaml.
        return tuple(sorted(path.stem for path in files if "." not in path.stem))

    def decide(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        canonical: str | None = None,
        *,
        resolved: str | None = None,
    ) -> Decision:
        """What this policy says about a call. Pure, and never an error.

        Args:
            tool: The tool's name; case does not matter.
            arguments: The decoded input in the order of the tool's schema. Patterns see it
                as compact JSON; what has no JSON form is denied in the pattern mode.
            canonical: That JSON, from whoever has made it already; None: it is made here.
            resolved: Where the call's path leads in the container, links followed; None where
                nobody asked, and rules for paths see it as it is written alone.

        Returns:
            The verdict; the rule it is by: `deny[0]`, `allow[2]`, `default`, `mode`,
            `protect`, `unknown` for what can't be told before it runs, or `input` for a call
            that no rule can judge; and for a call that is not allowed the reason.
        """
        return self.judge(tool, arguments, canonical, resolved=resolved).decision

    def judge(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        canonical: str | None = None,
        *,
        resolved: str | None = None,
    ) -> Judgement:
        """As `decide`, with how it came about: each part of a script, and the rates to keep."""
        if self.rule_set is None:
            return Judgement(self.default)
        return judge(self.rule_set, tool, arguments, canonical, resolved)

    def looks_at_paths(self, tool: str) -> bool:
        """Whether it matters for calls of this tool where their path leads in the container."""
        if self.rule_set is None:
            return False
        name = tool.casefold()
        if name in CHANGES_FILES and self.rule_set.protected.globs:
            return True
        return any(
            isinstance(condition, PathMatches)
            for rule in self.rules
            if rule.is_for(name)
            for condition in rule.conditions
        )

    def hides(
        self, tool: str, arguments: Mapping[str, Any], canonical: str | None = None
    ) -> tuple[str, ...]:
        """Which files a call that searches a directory must not look into.

        Args:
            tool: As for `decide`.
            arguments: As for `decide`.
            canonical: As for `decide`.

        Returns:
            Regular expressions in RE2's syntax: a file is hidden where one is found in its
            path. They are those of the rules that would refuse a call for the file itself, or
            would ask about it.
        """
        refusing = [
            rule
            for rule in self.rules
            if rule.decision.verdict is not Verdict.ALLOW and rule.is_for(tool.casefold())
        ]
        if not refusing:
            return ()
        try:
            subject = Subject(tool, arguments, canonical)
        except NotJson:
            return ()
        hidden = []
        for rule in refusing:
            paths = [c for c in rule.conditions if isinstance(c, PathMatches)]
            others = [c for c in rule.conditions if not isinstance(c, PathMatches)]
            if paths and all(condition.holds(subject) for condition in others):
                # Of several, one: what is hidden too much is safe.
                hidden.append(paths[0].test.regex)
        return tuple(hidden)

    @property
    def watched(self) -> tuple[str, ...]:
        """Regular expressions, as for `hides`, over the folded paths of protected files."""
        return self.rule_set.protected.patterns if self.rule_set is not None else ()

    @classmethod
    def _from_bytes(cls, content: bytes, *, source: str, name: str) -> Self:
        return cls._build(_Source(source, content), name=name)

    @classmethod
    def _build(cls, source: "_Source", *, name: str) -> Self:
        document = source.document()
        parts = _included(source, document)
        compiler = _Compiler(parts)
        reason = document.reason or _REASONS[document.mode]
        match document.mode:
            case Mode.ALLOW_ALL:
                default = Decision(Verdict.ALLOW, "mode")
            case Mode.DENY_ALL:
                default = Decision(Verdict.DENY, "mode", reason)
            case Mode.PATTERN:
                said = _unless_asked(document.default, reason)
                default = _decision(document.default, "default", said)
        rule_set = None
        if document.mode is Mode.PATTERN:
            rules = compiler.rules()
            rule_set = RuleSet(
                rules=by_precedence(rules),
                default=default,
                unknown=Decision(
                    document.on_unknown, "unknown", _unless_asked(document.on_unknown, reason)
                ),
                protected=_protected(parts),
                protects=Decision(Verdict.DENY, "protect", reason),
                rate=_rate(document.rate, None),
                judges_paths=any(
                    isinstance(condition, PathMatches)
                    for rule in rules
                    for condition in rule.conditions
                ),
            )
        content = b"".join(part.source.content for part in parts)
        policy = cls(
            name=name,
            digest=hashlib.sha256(content).hexdigest(),
            mode=document.mode,
            default=default,
            warnings=lint.warnings(document, compiler.patterns_of(parts[0]), compiler.commands()),
            rule_set=rule_set,
            examples=document.examples,
            files=tuple(part.source.name for part in parts if part.source.is_file),
            network=network_rules(
                (part.prefix, part.source.name, part.document.network) for part in parts
            ),
        )
        _prove(policy, source.name)
        if document.shadow is None:
            return policy
        return policy._with_shadow(source, document.shadow)

    def _with_shadow(self, source: "_Source", written: Written) -> Self:
        found = source.other(written, "shadow")
        shadow = Policy._build(found, name=written.text)
        if shadow.shadow is not None:
            raise PolicyError(
                f"`shadow` names {written.text}, which has a shadow of its own",
                source=source.name,
                line=written.line,
            )
        return replace(self, shadow=shadow, files=(*self.files, *shadow.files))


class _Source(NamedTuple):
    """A text, and what it is called."""

    name: str
    content: bytes
    text: str | None = None
    """None for a file."""

    @property
    def is_file(self) -> bool:
        return self.text is None

    def document(self) -> Document:
        if self.text is not None:
            return documents.read(self.text, self.name)
        try:
            text = self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.content.count(b"\n", 0, error.start) + 1
            problem = "the file is not UTF-8 text; save it in that encoding"
            raise PolicyError(problem, source=self.name, line=line) from None
        return documents.read(text, self.name)

    def other(self, written: Written, key: str) -> "_Source":
        """Another policy that this one names: a shipped one, or a file beside it."""
        name = written.text
        if name in Policy.shipped():
            path = asset_dir("policies") / f"{name}{_SUFFIX}"
        elif name.endswith((_SUFFIX, ".yml")) and self.is_file:
            path = Path(self.name).parent / name
        else:
            files = " or a file beside this one, such as team.yaml" if self.is_file else ""
            raise PolicyError(
                f"`{key}`: no shipped policy is called {name!r}; write one of "
                f"{', '.join(Policy.shipped())}{files}",
                source=self.name,
                line=written.line,
            )
        try:
            return _Source(str(path), _read(str(path)))
        except PolicyError as error:
            problem = f"`{key}`: {path}: {error.problem}"
            raise PolicyError(problem, source=self.name, line=written.line) from None


class _Part(NamedTuple):
    """One of the files that make a policy."""

    source: _Source
    document: Document
    prefix: str
    """What its rules' names start with; empty for the policy's own."""


def _included(source: _Source, document: Document) -> list[_Part]:
    """The policy itself, then what it includes, and what that includes, each once."""
    parts = [_Part(source, document, "")]
    seen = {source.name}
    for part in parts:  # which grows
        for written in part.document.include:
            found = part.source.other(written, "include")
            if found.name in seen:
                continue
            seen.add(found.name)
            inner = found.document()
            if inner.mode is not Mode.PATTERN:
                raise PolicyError(
                    f"`include`: {written.text} is of mode {inner.mode} and has no rules to share",
                    source=part.source.name,
                    line=written.line,
                )
            if len(parts) == MAX_INCLUDED:
                raise PolicyError(
                    f"`include`: more than {MAX_INCLUDED} files",
                    source=part.source.name,
                    line=written.line,
                )
            parts.append(_Part(found, inner, f"{Path(found.name).stem}:"))
    return parts


def _protected(parts: Sequence[_Part]) -> Protected:
    """Protected files: the usual ones unless the policy says otherwise.

    rousseau-agent protects none, and a file that could be one of its own means here what it
    means there.
    """
    own = parts[0].document
    entries: list[str] = []
    if own.protect is None and not own.could_be_rousseaus:
        entries.append("default")
    for part in parts:
        for written in part.document.protect or ():
            try:
                Protected.named([written.text])
            except PatternError as error:
                problem = f"`protect`: {error}"
                raise PolicyError(problem, source=part.source.name, line=written.line) from None
            # What an included file takes out is its own affair.
            if not part.prefix or not written.text.startswith("-"):
                entries.append(written.text)
    return Protected.named(entries)


def _rate(text: RateText | None, rule: str | None) -> Rate | None:
    return None if text is None else Rate(text.calls, text.per_s, text.per, rule)


def _prove(policy: Policy, source: str) -> None:
    """See that the policy decides its own examples as they say."""
    for index, example in enumerate(policy.examples):
        decision = policy.decide(example.tool, example.arguments, resolved=example.resolved)
        if decision.verdict is not example.verdict:
            because = f": {decision.reason}" if decision.reason else ""
            raise PolicyError(
                f"examples[{index}]: {example} is to be {_PARTICIPLES[example.verdict]}, but "
                f"{decision.rule} says {decision.verdict}{because}",
                source=source,
                line=example.line,
            )


_PARTICIPLES = {Verdict.ALLOW: "allowed", Verdict.ASK: "asked about", Verdict.DENY: "denied"}


def _decision(verdict: Verdict, rule: str, reason: str) -> Decision:
    return Decision(verdict, rule, "" if verdict is Verdict.ALLOW else reason)


def _unless_asked(verdict: Verdict, reason: str) -> str:
    """The words for a refusal, which a question is not."""
    return "" if verdict is Verdict.ASK else reason


class _Compiler:
    """Rules as they are written into rules that judge."""

    def __init__(self, parts: Sequence[_Part]):
        self._parts = parts
        written = sum(len(rule.conditions) for part in parts for rule in part.document.rules)
        share = PATTERNS_MEMORY_BYTES // max(written, 1)
        self._memory_bytes = min(share, MAX_PATTERN_MEMORY_BYTES)
        self._matches: dict[tuple[str, str], Pattern] = {}
        self._rules = [
            self._rule(part, rule)
            for part in (*parts[1:], parts[0])
            for rule in part.document.rules
        ]

    def rules(self) -> list[Rule]:
        """All of them, those of included files first."""
        return self._rules

    def patterns_of(self, part: _Part) -> dict[str, Pattern]:
        """The pattern of each rule of a file that has a `match`, by the rule's name."""
        prefix = part.prefix
        return {name: found for (at, name), found in self._matches.items() if at == prefix}

    def commands(self) -> dict[str, CommandPattern]:
        """The pattern of each rule that has a `command`, by the rule's whole name."""
        return {rule.decision.rule or "": rule.command for rule in self._rules if rule.command}

    def _rule(self, part: _Part, rule: RuleText) -> Rule:
        reason = part.document.reason or self._parts[0].document.reason or _REASONS[Mode.PATTERN]
        if rule.verdict is Verdict.ASK:
            reason = rule.justification
        elif rule.justification:
            reason = f"{reason}: {rule.justification}"
        name = f"{part.prefix}{rule.name}"
        conditions: list[Condition] = []
        command: CommandPattern | None = None
        redirect: Glob | None = None
        for text in rule.conditions:
            try:
                match text.key:
                    case "command":
                        command = CommandPattern.compile(text.text, memory_bytes=self._memory_bytes)
                    case "redirect":
                        redirect = Glob.compile(text.text, memory_bytes=self._memory_bytes)
                    case _:
                        conditions.append(self._condition(part, rule, text))
            except PatternError as error:
                raise PolicyError(
                    f"{rule.name}: {_fault(text)}: {error}", source=part.source.name, line=text.line
                ) from None
        if command is not None and redirect is not None:
            raise PolicyError(
                f"{rule.name}: `command` and `redirect` are about different parts of a script; "
                "write a rule for each",
                source=part.source.name,
                line=rule.line,
            )
        return Rule(
            decision=_decision(rule.verdict, name, reason),
            line=rule.line,
            tools=with_kin(rule.tools) or None,
            conditions=tuple(conditions),
            command=command,
            redirect=redirect,
            rate=_rate(rule.rate, name),
        )

    def _condition(self, part: _Part, rule: RuleText, text: ConditionText) -> Condition:
        if text.key == "glob":
            test = Glob.compile(text.text, memory_bytes=self._memory_bytes)
            return PathMatches(test, both=rule.verdict is Verdict.ALLOW)
        pattern = Pattern.compile(text.text, memory_bytes=self._memory_bytes)
        match text.key:
            case "match":
                self._matches[part.prefix, rule.name] = pattern
                return JsonMatches(pattern)
            case "anywhere":
                return AnyTextMatches(pattern)
            case "field":
                return FieldMatches(text.field, pattern)
            case "path":
                return PathMatches(pattern, both=rule.verdict is Verdict.ALLOW)
            case _:
                raise AssertionError(text.key)


def _fault(text: ConditionText) -> str:
    key = f"field.{text.field}" if text.key == "field" else text.key
    if key in ("glob", "redirect"):
        return f"`{key}` is no glob for paths"
    return f"`{key}` is not a regular expression that RE2 knows"


def _read(path: str) -> bytes:
    """The file, or enough of it to see that it is too large."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        names = ", ".join(Policy.shipped())
        problem = f"there is no such file (policies known by name are {names})"
    except IsADirectoryError:
        problem = "this is a directory; name a policy file in it"
    except PermissionError:
        problem = "the file may not be read by this user; check its permissions"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        problem = f"the file can't be read: {error}"
    raise PolicyError(problem, source=path)


DENY_EVERYTHING = Policy(
    name="none",
    digest="",
    mode=Mode.DENY_ALL,
    default=Decision(
        Verdict.DENY,
        None,
        "denied: no policy was given, and without one nothing is allowed. Pass one: "
        'Runner(policy="default") or the path of a policy file in Python, --policy on the '
        "command line.",
    ),
)
"""What holds where nobody gave a policy."""
