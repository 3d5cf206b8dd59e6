"""A policy to start from, made of calls that ran: narrow rules, and what a person must decide.

Owns which rule a recorded call leads to. What the rules mean is not decided here: the text is
made into a policy, and each call becomes an example only if that policy allows it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import ConfigurationError
from runner.model import Record, Verdict
from runner.policy.acts import SCRIPT, WORKSPACE
from runner.policy.commands import CommandPattern
from runner.policy.matching import MAX_PATTERN_MEMORY_BYTES, PATH, PatternError, normalise
from runner.policy.nodes import flow
from runner.policy.paths import Protected
from runner.policy.policy import Policy
from runner.policy.shell import Command, analyse
from runner.policy.trial import NotKept, arguments_of

LOOKS = ("read", "grep")
CHANGES = ("write", "edit")
"""Tools whose paths get rules together."""

MAX_RULES = 300
"""Of one kind; those for the most calls."""
MAX_EXAMPLES = 200
MAX_EXAMPLE_CHARACTERS = 500
"""Of a script: a longer one shows a reader nothing."""

_HEAD = """\
# Made by `runner policy init` from {calls} of {whose}. It allows these
# calls and what is much like them, and denies everything else. Read each rule before you use
# it: widen what is too narrow, take out what should not have happened. What a person has to
# decide is in comments. `runner policy check` and `runner policy test` tell whether it is sound.
version: 1
mode: pattern
default: deny
reason: "not among what this policy allows"
allow:
"""


def starting_policy(records: Iterable[Record], whose: str) -> str:
    """The text of a policy file that allows what these calls did.

    Args:
        records: Recorded calls. Those that did not run teach nothing and are passed over.
        whose: Where they are from, for the comment at the top: `session s-1`.

    Raises:
        ConfigurationError: None of them ran.
    """
    seen = _Seen()
    for record in records:
        seen.add(record)
    if not seen.calls:
        raise ConfigurationError(
            f"no recorded call of {whose} ran, so there is nothing to make a policy of; let the"
            " agent work in a session first, under a policy that allows what it needs"
        )
    calls = "one call" if seen.calls == 1 else f"{seen.calls} calls"
    text = _HEAD.format(calls=calls, whose=_comment(whose))
    text += "".join(f"  {line}\n" for line in seen.rules())
    return text + "".join(f"{line}\n" for line in seen.examples(Policy.parse(text)))


@dataclass(frozen=True, slots=True)
class _Rule:
    """A line of the `allow` list."""

    text: str
    doubt: str = ""
    """Why somebody has to decide about it; empty for a rule that is in force."""


@dataclass(slots=True)
class _Seen:
    """What the calls did, each thing with the number of calls that did it."""

    calls: int = 0
    commands: Counter[_Rule] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    other_tools: Counter[str] = field(default_factory=Counter)
    examples_of: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """What stands for a call in the file, and the call."""

    def add(self, record: Record) -> None:
        if record.verdict is not Verdict.ALLOW:
            return
        try:
            arguments = arguments_of(record)
        except NotKept:
            return
        self.calls += 1
        script, path = arguments.get(SCRIPT), arguments.get(PATH)
        if record.tool in LOOKS and isinstance(path, str):
            self.looked_at[normalise(path)] += 1
            self._example(record.tool, PATH, path, arguments)
        elif record.tool in CHANGES and isinstance(path, str):
            self.changed[normalise(path)] += 1
            self._example(record.tool, PATH, path, arguments)
        elif record.tool == "bash" and isinstance(script, str):
            self._look_into(script)
            self._example(record.tool, SCRIPT, script, arguments)
        else:
            self.other_tools[record.tool] += 1

    def _example(self, tool: str, key: str, value: str, arguments: Mapping[str, Any]) -> None:
        # What else is in the arguments, such as a file's content, is nothing for a policy file.
        if len(value) <= MAX_EXAMPLE_CHARACTERS:
            written = f"tool: {tool}, {key}: {_scalar(value)}, is: allow"
            self.examples_of.setdefault(f"{{{written}}}", (tool, arguments))

    def _look_into(self, text: str) -> None:
        script = analyse(text)
        if script.unknown:
            first = script.unknown[0]
            part = _scalar(text[first.start : first.end])
            self.unknown[f"{part}: {_comment(first.why)}"] += 1
            return
        # What a script does twice, it is still one call that does it.
        self.commands.update({rule for each in script.commands if (rule := _rule_for(each))})
        self.written.update({write.path for write in script.writes})

    # Lines of the file.

    def rules(self) -> Iterator[str]:
        sure = {rule: count for rule, count in self.commands.items() if not rule.doubt}
        yield from _lines(sure)
        yield from _lines(_for_paths("bash", "redirect", self.written))
        yield from _lines(_for_paths(f"[{', '.join(LOOKS)}]", "glob", self.looked_at))
        yield from _lines(_for_paths(f"[{', '.join(CHANGES)}]", "glob", self.changed))
        yield from _lines({rule: n for rule, n in self.commands.items() if rule.doubt})
        yield from _lines(
            {
                _Rule(f"{{tool: {_scalar(tool)}}}", "any input"): n
                for tool, n in self.other_tools.items()
            }
        )
        for why, count in self.unknown.most_common(MAX_RULES):
            yield f"# No rule can allow a script with {why}{_times(count)}"

    def examples(self, policy: Policy) -> Iterator[str]:
        allowed: list[str] = []
        others: list[str] = []
        for text, (tool, arguments) in self.examples_of.items():
            verdict = policy.decide(tool, arguments).verdict
            (allowed if verdict is Verdict.ALLOW else others).append(text)
        yield "examples:"
        for text in allowed[:MAX_EXAMPLES]:
            yield f"  - {text}"
        if others:
            yield "  # These ran, and are denied unless a rule above leaves its comment:"
        for text in others[:MAX_EXAMPLES]:
            yield f"  # - {text}"


def _lines(rules: Mapping[_Rule, int]) -> Iterator[str]:
    """Rules, those for the most calls first; as comments where somebody has to decide."""
    ordered = sorted(rules.items(), key=lambda found: (-found[1], found[0].text))
    for rule, count in ordered[:MAX_RULES]:
        if rule.doubt:
            yield f"# - {rule.text}  # {_comment(rule.doubt)}{_times(count)}"
        else:
            yield f"- {rule.text}"
    if len(ordered) > MAX_RULES:
        yield f"# {len(ordered) - MAX_RULES} more, for rarer calls, are left out"


def _times(count: int) -> str:
    return f" ({count} calls)" if count > 1 else ""


# --- commands

_PLAIN = re.compile(r"[A-Za-z0-9_.,:=@%/+-]+")
_SUBCOMMANDS = frozenset({"git"})
"""Programs of which the first word that is no flag tells what they do."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$]")


def _rule_for(command: Command) -> _Rule | None:
    """The rule for commands like this one; None where what it runs is what counts."""
    if not command.must_allow:
        return None
    last = max((word.word for word in command.sensitive), default=0)
    runs_code = last == 0 and command.sensitive
    if runs_code or command.argv[0] in _SUBCOMMANDS:
        last = max(last, _telling(command.argv))
    words = command.argv[: last + 1]
    doubt = command.sensitive[0].why if command.sensitive else ""
    if not all(_PLAIN.fullmatch(word) for word in words):
        return _Rule(_scalar(" ".join(words)), doubt or "no short rule is for it")
    pattern = "^" + " ".join(_META.sub(r"\\\g<0>", word) for word in words)
    if re.search(r"\w\Z", words[-1], re.ASCII):
        pattern += r"\b"
    if not _is_named_by(command, pattern):
        return _Rule(_scalar(" ".join(words)), doubt or "no short rule is for it")
    return _Rule(f"{{tool: bash, command: {_scalar(pattern)}}}", doubt)


def _telling(words: Sequence[str]) -> int:
    """The place of the word that tells what a program is to do: `run`, or `-m`'s module."""
    for place, word in enumerate(words[1:], 1):
        if word == "-m" and place + 1 < len(words):
            return place + 1
        if not word.startswith("-"):
            return place
    return 0


def _is_named_by(command: Command, pattern: str) -> bool:
    try:
        compiled = CommandPattern.compile(pattern, memory_bytes=MAX_PATTERN_MEMORY_BYTES)
    except PatternError:
        return False
    return compiled.names(command)


# --- paths

_OURS = (WORKSPACE, "/tmp")  # noqa: S108 - the container's
_PROTECTED = Protected.named(["default"])


def _for_paths(tool: str, key: str, paths: Mapping[str, int]) -> dict[_Rule, int]:
    """The rules for these paths, with the calls that each is for."""
    looks = tool != "bash" and LOOKS[0] in tool
    doubts = {path: _doubt_about(path, looks=looks) for path in paths}
    rules: dict[_Rule, int] = {}
    for doubt in sorted(set(doubts.values())):
        those = {path: count for path, count in paths.items() if doubts[path] == doubt}
        for glob, count in covering(those).items():
            rules[_Rule(f"{{tool: {tool}, {key}: {_scalar(glob)}}}", doubt)] = count
    return rules


def _doubt_about(path: str, *, looks: bool) -> str:
    if not any(path == ours or path.startswith(f"{ours}/") for ours in _OURS):
        return "outside of the workspace"
    if not looks and _PROTECTED.covers(path):
        return "runs code later, so it is protected; `protect` says what is"
    return ""


def covering(paths: Mapping[str, int]) -> dict[str, int]:
    """Globs for these paths, each with the count of those that it is for.

    One that is alone stands for itself. Several get the smallest directory that holds them,
    but never the root or the whole workspace.

    Args:
        paths: Normalised ones, with a count each.
    """
    waiting: dict[str, set[str]] = {}
    parents = {parent for path in paths for parent in _above(path)}
    for path in paths:
        waiting.setdefault(path if path in parents else _parent(path), set()).add(path)
    whole: dict[str, set[str]] = {}
    alone: set[str] = set()
    while waiting:
        directory = max(waiting, key=lambda name: (name.count("/"), len(name), name))
        here = waiting.pop(directory)
        if directory in ("/", WORKSPACE):
            alone |= here
        elif len(here) > 1:
            inside = [other for other in whole if other.startswith(f"{directory}/")]
            whole[directory] = here.union(*(whole.pop(other) for other in inside))
        else:
            waiting.setdefault(_parent(directory), set()).update(here)
    found = {f"{_escaped(name)}/**": sum(map(paths.__getitem__, whole[name])) for name in whole}
    return found | {_escaped(path) if path != "/" else "/**": paths[path] for path in alone}


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = _parent(path)
        yield path


def _escaped(path: str) -> str:
    return re.sub(r"[*?\[{}\\]", r"\\\g<0>", path)


# --- YAML

_PRINTABLE = re.compile(r"[\x20-\x7e]*")


def _scalar(text: str) -> str:
    """A text as a YAML scalar in quotes, on one line."""
    if _PRINTABLE.fullmatch(text):
        return "'" + text.replace("'", "''") + "'"
    return flow(text)


def _comment(text: str) -> str:
    """A text that can't leave its comment."""
    return flow(text)[1:-1].replace('\\"', '"')
