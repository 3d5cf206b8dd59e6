"""Trying a policy out: on cases that somebody wrote, and on calls that were recorded.

Owns what a case and a recorded call are worth as a trial. It reads no records and decides
nothing: calls come from the caller, verdicts from the policy.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import PolicyError
from runner.model import Decision, Record, Status, Verdict
from runner.policy.document import ExampleText
from runner.policy.document import read_cases as read_cases_text
from runner.policy.nodes import MAX_DOCUMENT_BYTES, flow
from runner.policy.policy import Policy

LINES_SUFFIX = ".jsonl"
"""Of a file of cases with one JSON object a line; any other is YAML."""


# --- cases


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that a policy does not decide as it says."""

    case: ExampleText
    decision: Decision


def read_cases(path: str | os.PathLike[str]) -> tuple[ExampleText, ...]:
    """The cases of a file: a YAML list as under `examples`, or JSON lines in a `.jsonl` file.

    Args:
        path: UTF-8 text, at most 1 MiB.

    Raises:
        PolicyError: The file can't be read, or holds something else. It names file and line.
    """
    source = os.fspath(path)
    try:
        with Path(source).open("rb") as file:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise PolicyError(f"the cases can't be read: {why}", source=source) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PolicyError("the cases are not UTF-8 text", source=source, line=line) from None
    if source.endswith(LINES_SUFFIX):
        text = _as_list(text, source)
    return read_cases_text(text, source)


def _as_list(text: str, source: str) -> str:
    """JSON lines as a YAML list that has each of them in the same line."""
    items = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            items.append("")
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PolicyError(f"not JSON: {error}", source=source, line=number) from None
        items.append(f"- {flow(value)}")
    return "\n".join(items) if any(items) else "[]"


def failures(policy: Policy, cases: Iterable[ExampleText]) -> tuple[Failure, ...]:
    """The cases that the policy decides otherwise than they say, in their order."""
    found = []
    for case in cases:
        decision = policy.decide(case.tool, case.arguments, resolved=case.resolved)
        if decision.verdict is not case.verdict:
            found.append(Failure(case, decision))
    return tuple(found)


# --- recorded calls


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded call with what was said of it, and what another policy says."""

    record: Record
    then: Decision
    """What the policy of that time said: a call that it asked about is an `ask`, whatever the
    answer was, and one that only a rate refused is allowed."""
    now: Decision | None
    """None where it can't be judged."""
    why_not: str = ""

    @property
    def changes(self) -> bool:
        """Whether the verdict is another one."""
        return self.now is not None and self.now.verdict is not self.then.verdict


def replay(policy: Policy, record: Record) -> Replayed | None:
    """What this policy says about a recorded call.

    Paths are judged as they were written: where they led is not recorded. Rates are left out.

    Returns:
        None for a call that no policy has judged, such as one whose input was invalid.
    """
    then = _said(record)
    if then is None:
        return None
    try:
        arguments = arguments_of(record)
    except NotKept as why_not:
        return Replayed(record, then, None, str(why_not))
    return Replayed(record, then, policy.decide(record.tool, arguments))


def shadowed(record: Record) -> Replayed | None:
    """What the policy that was on trial when the call was recorded said about it.

    Returns:
        None where none was on trial, or no policy has judged the call.
    """
    then = _said(record)
    if then is None or not record.shadow:
        return None
    try:
        shadow = json.loads(record.shadow)
        now = Decision(Verdict(shadow["verdict"]), shadow["rule"])
    except (ValueError, KeyError, TypeError):
        return Replayed(record, then, None, "the record of the policy on trial can't be read")
    return Replayed(record, then, now)


class NotKept(Exception):
    """The arguments of a recorded call can't be had; the text says why."""


def arguments_of(record: Record) -> dict[str, Any]:
    """A recorded call's arguments.

    Raises:
        NotKept: They were not kept whole, or are no JSON object.
    """
    if record.details.get("not_stored_bytes", {}).get("arguments"):
        raise NotKept("its arguments were longer than what is kept of them")
    try:
        arguments = json.loads(record.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise NotKept("its arguments are not recorded as JSON")
    return arguments


_ASKS = re.compile(r"(?:^|:)ask\[")
_RATE = ".rate"


def _said(record: Record) -> Decision | None:
    """What the policy itself said, before a person or a rate had their say."""
    if record.verdict is None or record.status is Status.INVALID:
        return None
    rule = record.rule or ""
    if rule.endswith(_RATE):
        return Decision(Verdict.ALLOW, rule.removesuffix(_RATE))
    if record.approval or _ASKS.search(rule):
        return Decision(Verdict.ASK, record.rule, record.reason)
    return Decision(record.verdict, record.rule, record.reason)
