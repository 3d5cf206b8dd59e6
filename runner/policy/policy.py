"""`Policy`: a file made into a value that decides calls, and where policies come from."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runner.assets import asset_dir
from runner.errors import PolicyError
from runner.model import Decision, Verdict
from runner.policy import document as documents
from runner.policy import lint
from runner.policy.document import Document, Mode
from runner.policy.lint import PolicyWarning
from runner.policy.matching import (
    MAX_PATTERN_MEMORY_BYTES,
    JsonMatches,
    Pattern,
    PatternError,
)
from runner.policy.rules import Rule, by_precedence, decide

PATTERNS_MEMORY_BYTES = 256 * 1024**2
"""The most that all patterns of one policy may take together, their caches included."""

_REASONS = {
    Mode.ALLOW_ALL: "",
    Mode.DENY_ALL: "denied by policy",
    Mode.PATTERN: "denied by pattern policy",
}
"""What a denied call is told where the policy has no words of its own."""

_SUFFIX = ".yaml"


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
    rules: tuple[Rule, ...]
    """In the order in which they are asked. Empty where the mode reads none."""
    default: Decision
    """What holds for a call that no rule decides: every call, where the mode reads no rules."""
    warnings: tuple[PolicyWarning, ...] = ()
    """What has no effect, or another than it seems to have. Worth showing once."""

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
        document = documents.read(text, source)
        return cls._build(document, source=source, name=source, content=text.encode())

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
        self, tool: str, arguments: Mapping[str, Any], canonical: str | None = None
    ) -> Decision:
        """What this policy says about a call. Pure, and never an error.

        Args:
            tool: The tool's name; case does not matter.
            arguments: The decoded input in the order of the tool's schema. Patterns see it
                as compact JSON; what has no JSON form is denied in the pattern mode.
            canonical: That JSON, from whoever has made it already; None: it is made here.

        Returns:
            The verdict; the rule it is by: `deny[0]`, `allow[2]`, `default`, `mode`, or
            `input` for a call that no rule can judge; and for a denied call the reason.
        """
        if self.mode is not Mode.PATTERN:
            return self.default
        return decide(self.rules, self.default, tool, arguments, canonical)

    @classmethod
    def _from_bytes(cls, content: bytes, *, source: str, name: str) -> Self:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            problem = "the file is not UTF-8 text; save it in that encoding"
            raise PolicyError(problem, source=source, line=line) from None
        document = documents.read(text, source)
        return cls._build(document, source=source, name=name, content=content)

    @classmethod
    def _build(cls, document: Document, *, source: str, name: str, content: bytes) -> Self:
        patterns = _compile(document, source)
        reason = document.reason or _REASONS[document.mode]
        match document.mode:
            case Mode.ALLOW_ALL:
                default = Decision(Verdict.ALLOW, "mode")
            case Mode.DENY_ALL:
                default = Decision(Verdict.DENY, "mode", reason)
            case Mode.PATTERN:
                default = _decision(document.default, "default", reason)
        return cls(
            name=name,
            digest=hashlib.sha256(content).hexdigest(),
            mode=document.mode,
            rules=_rules(document, patterns, reason) if document.mode is Mode.PATTERN else (),
            default=default,
            warnings=lint.warnings(document, patterns),
        )


def _decision(verdict: Verdict, rule: str, reason: str) -> Decision:
    return Decision(verdict, rule, "" if verdict is Verdict.ALLOW else reason)


def _compile(document: Document, source: str) -> dict[str, Pattern]:
    """The pattern of each rule that has one, by the rule's name."""
    written = [rule for rule in document.rules if rule.match]
    share = PATTERNS_MEMORY_BYTES // max(len(written), 1)
    compiled = {}
    for rule in written:
        try:
            compiled[rule.name] = Pattern.compile(
                rule.match, memory_bytes=min(share, MAX_PATTERN_MEMORY_BYTES)
            )
        except PatternError as error:
            raise PolicyError(
                f"{rule.name}: `match` is not a regular expression that RE2 knows: {error}",
                source=source,
                line=rule.match_line,
            ) from None
    return compiled


def _rules(document: Document, patterns: Mapping[str, Pattern], reason: str) -> tuple[Rule, ...]:
    return by_precedence(
        [
            Rule(
                decision=_decision(rule.verdict, rule.name, reason),
                line=rule.line,
                tool=rule.tool.casefold() or None,
                conditions=(JsonMatches(patterns[rule.name]),) if rule.match else (),
            )
            for rule in document.rules
        ]
    )


def _read(path: str) -> bytes:
    """The file, or enough of it to see that it is too large."""
    try:
        with Path(path).open("rb") as file:
            return file.read(documents.MAX_DOCUMENT_BYTES + 1)
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
    rules=(),
    default=Decision(
        Verdict.DENY,
        None,
        "denied: no policy was given, and without one nothing is allowed. Pass one: "
        'Runner(policy="default") or the path of a policy file in Python, --policy on the '
        "command line.",
    ),
)
"""What holds where nobody gave a policy."""
