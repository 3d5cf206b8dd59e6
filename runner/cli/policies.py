"""`runner policy`: what a policy says and why, what it would have said, one to start from."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.exits import NO, OK
from runner.cli.options import Json, Quiet, Tools, ToolSetName, terminal_of
from runner.cli.session import no_session
from runner.cli.terminal import described, one_line
from runner.cli.values import local_time, moment, tool_input
from runner.errors import INVALID, PolicyError

if TYPE_CHECKING:
    from runner.model import Decision, Record
    from runner.policy import Policy
    from runner.policy.explain import Asked, Explanation, Part
    from runner.policy.trial import Failure, Replayed
    from runner.store import Store
    from runner.tools import Registry

SHOWN_CHARACTERS = 300
"""Of a call in a table; `--json` shows all that there is."""
FEW_RULES = 8
"""Up to so many are shown whether they fit or not."""
SHOWN_BESIDE = 60
"""Characters of a script on each side of what is pointed at."""
PAGE = 500
"""Records that are read at once."""

PolicyArgument = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="A file, or a shipped policy.")
]
Session = Annotated[
    str | None, typer.Option("--session", "-s", metavar="ID", help="Only of this session.")
]


def check(
    context: typer.Context,
    file: PolicyArgument,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if there is a warning.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Load a policy, and say what is odd about it.

    A policy that can't be loaded is an error with file, line and rule. A warning is about a
    rule that has no effect, or another than it seems to have, or that hands out a program
    which runs code of anybody's.
    """
    from runner.app import as_policy

    terminal = terminal_of(context)
    policy = as_policy(file)
    if terminal.as_json:
        terminal.print_json(
            {**_about(policy), "warnings": [asdict(warning) for warning in policy.warnings]}
        )
    else:
        terminal.print("\n".join(described(_about(policy))))
        for warning in policy.warnings:
            terminal.print(f"{policy.name}: warning: {warning}")
    raise typer.Exit(NO if strict and policy.warnings else OK)


def _about(policy: "Policy") -> dict[str, Any]:
    return {
        "policy": policy.name,
        "mode": str(policy.mode),
        "rules": len(policy.rules),
        "network_rules": len(policy.network.allow) + len(policy.network.deny),
        "default": str(policy.default.verdict),
        "digest": policy.digest,
    }


def list_(context: typer.Context, as_json: Json = False) -> None:
    """List the policies that come with the runner."""
    from runner.policy import Policy

    terminal = terminal_of(context)
    names = Policy.shipped()
    if terminal.as_json:
        terminal.print_json([_about(Policy.named(name)) for name in names])
    else:
        terminal.print("\n".join(names))


def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `runner policy list` prints it.")],
) -> None:
    """Print a policy that comes with the runner."""
    from runner.assets import asset_dir
    from runner.policy import Policy

    policy = Policy.named(name)
    text = (asset_dir("policies") / f"{policy.name}.yaml").read_text(encoding="utf-8")
    terminal_of(context).print_text(text)


# Why.


def explain(
    context: typer.Context,
    file: PolicyArgument,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    input_: Annotated[
        str, typer.Argument(metavar="INPUT", help="JSON, @FILE with JSON in it, or - to read it.")
    ],
    resolved: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Where the call's path leads in the container, links followed."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show rules that do not fit, too.")] = False,
    tools: Tools = ToolSetName.ROUSSEAU,
    as_json: Json = False,
) -> None:
    """Say what a policy makes of a call, and why.

    Shows each part of the call and the rules that fit it, and points at what nobody can tell
    beforehand. Nothing runs. Whatever the verdict, the exit status is 0; it is 121 for an
    input that does not fit the tool, which no policy is asked about.
    """
    from runner.app import as_policy
    from runner.policy.explain import explain as explained
    from runner.tools import named_registry

    terminal = terminal_of(context)
    policy = as_policy(file)
    try:
        arguments = _arguments(named_registry(tools.value), tool, tool_input(input_))
    except ValueError as invalid:
        terminal.error(f"{invalid}; no policy is asked about such a call")
        if terminal.as_json:
            terminal.print_json({"status": "invalid", "error": str(invalid)})
        raise typer.Exit(INVALID) from None
    explanation = explained(policy, tool, arguments, resolved=resolved)
    if terminal.as_json:
        terminal.print_json(explanation.as_dict())
    else:
        terminal.print("\n".join(_explained(explanation, every=every)))


def _arguments(registry: "Registry", name: str, raw: bytes) -> dict[str, Any]:
    """A call's arguments: as the tool takes them, or of a tool that is not known any object.

    Raises:
        ValueError: The input does not fit.
    """
    from runner.tools import InvalidInput, decode

    tool = registry.get(name)
    if tool is not None:
        try:
            return decode(tool, raw).arguments
        except InvalidInput as invalid:
            raise ValueError(str(invalid)) from None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name}: the input must be an object")  # noqa: TRY004 - data, not a type
    return value


def _explained(explanation: "Explanation", *, every: bool) -> Iterator[str]:
    yield _said(explanation.decision, explanation.decision.reason)
    for part in explanation.parts:
        yield ""
        yield _headline(part)
        if part.words:
            yield _short(f"  words  {' '.join(repr(word) for word in part.words)}")
        for mark in part.marks:
            yield from pointed(explanation.script, mark.start, mark.end, mark.why)
        every_one = every or len(part.asked) <= FEW_RULES
        shown = [rule for rule in part.asked if every_one or rule.answer != "no"]
        yield from _rules(shown, part.decision)
        if left_out := len(part.asked) - len(shown):
            others = "other " if shown else ""
            yield f"  {left_out} {others}rule{'s' if left_out > 1 else ''} asked, not for this"


def _said(decision: "Decision", reason: str = "") -> str:
    said = f"{decision.verdict} by {decision.rule}" if decision.rule else str(decision.verdict)
    return one_line(f"{said}: {reason}" if reason else said)


def _headline(part: "Part") -> str:
    if part.kind == "call":
        what, otherwise = "the call as a whole", "no rule is for it"
    else:
        what, otherwise = (
            f"{part.kind} {one_line(_short(part.text))}",
            "what it runs is judged by itself",
        )
    return f"{what}: {otherwise if part.decision is None else _said(part.decision)}"


def _rules(asked: "Sequence[Asked]", decision: "Decision | None") -> Iterator[str]:
    width = max((len(rule.rule) for rule in asked), default=0)
    for rule in asked:
        answer = {"fits": "fits", "unnamed": "no  ", "no": "no  "}[rule.answer]
        decides = decision is not None and rule.rule == decision.rule and rule.answer == "fits"
        line = f"  {rule.rule.ljust(width)}  line {rule.line:<4} {answer}  {rule.what}"
        yield one_line(f"{line}  <- decides" if decides else line)


def pointed(text: str, start: int, end: int, why: str) -> list[str]:
    """A part of a text with a line below that points at it and says why.

    Args:
        text: One or more lines.
        start: Where the part begins, in characters.
        end: Where it ends. What is in other lines than its start is left out.
        why: What to say about it.
    """
    from rich.cells import cell_len

    from_ = max(text.rfind("\n", 0, start) + 1, start - SHOWN_BESIDE)
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    stop = max(start, min(end, line_end, start + 2 * SHOWN_BESIDE))
    before, marked = one_line(text[from_:start]), one_line(text[start:stop])
    after = one_line(text[stop : min(line_end, stop + SHOWN_BESIDE)])
    carets = "^" * max(1, cell_len(marked))
    return [f"  {before}{marked}{after}", f"  {' ' * cell_len(before)}{carets} {one_line(why)}"]


# Trials.


def try_cases(
    context: typer.Context,
    file: PolicyArgument,
    cases: Annotated[
        str | None,
        typer.Argument(
            metavar="[CASES]",
            help="YAML, or JSON lines in a .jsonl file. Default: NAME.cases.yaml beside NAME.yaml.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """See that a policy decides calls as a file of cases says.

    A case is like one of the policy's `examples`. Prints those that are decided otherwise, and
    exits with 1 if there are any.
    """
    from runner.app import as_policy
    from runner.policy.trial import failures, read_cases

    terminal = terminal_of(context)
    policy = as_policy(file)
    source = _cases_of(file) if cases is None else cases
    found = read_cases(source)
    if not found:
        raise PolicyError("there is no case in it, so it proves nothing", source=source)
    failed = failures(policy, found)
    if terminal.as_json:
        terminal.print_json(
            {
                "policy": policy.name,
                "digest": policy.digest,
                "cases": len(found),
                "failures": [_failure(failure) for failure in failed],
            }
        )
    elif failed:
        terminal.print_table(
            ("LINE", "CALL", "IS TO BE", "IS", "BY", "REASON"),
            [
                (
                    str(failure.case.line),
                    _short(str(failure.case)),
                    str(failure.case.verdict),
                    str(failure.decision.verdict),
                    failure.decision.rule or "",
                    failure.decision.reason,
                )
                for failure in failed
            ],
        )
    terminal.say(f"{_count(len(found), 'case')}: {len(failed)} failed")
    raise typer.Exit(NO if failed else OK)


def _cases_of(file: str) -> str:
    from runner.assets import asset_dir
    from runner.policy import Policy

    path = asset_dir("policies") / f"{file}.yaml" if file in Policy.shipped() else Path(file)
    return str(path.with_name(f"{path.stem}.cases.yaml"))


def _failure(failure: "Failure") -> dict[str, Any]:
    case = failure.case
    return {
        "line": case.line,
        "tool": case.tool,
        "input": dict(case.arguments),
        "resolved": case.resolved,
        "expected": case.verdict,
        "decision": asdict(failure.decision),
    }


def replay(
    context: typer.Context,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|NAME]", help="A file, or a shipped policy.")
    ] = None,
    since: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=moment,
            help="Only calls since then: 2h and the like for so long ago, or a date and time.",
        ),
    ] = None,
    session: Session = None,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow", help="Ask no policy: show what the one on trial said when they ran."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a verdict would change.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge the recorded calls by another policy.

    Shows which verdicts would change. Nothing runs. Calls that were invalid are left out. Paths
    are judged as they were written, since where links led is not recorded; rates are not
    counted.
    """
    from runner.app import as_policy, open_store
    from runner.policy.trial import replay as replayed
    from runner.policy.trial import shadowed
    from runner.settings import Settings

    terminal = terminal_of(context)
    if (file is None) is not shadow:
        raise typer.BadParameter("name a policy, or write --shadow; one of the two")
    policy = None if file is None else as_policy(file)
    judged = 0
    changed: list[Replayed] = []
    unjudged: list[Replayed] = []
    by_path = False
    with open_store(Settings.read()) as store:
        if session is not None and store.session(session) is None:
            raise no_session(session)
        for record in _records(store, session, since):
            call = shadowed(record) if policy is None else replayed(policy, record)
            if call is None:
                continue
            if call.now is None:
                unjudged.append(call)
                continue
            judged += 1
            by_path = by_path or (policy is not None and policy.looks_at_paths(record.tool))
            if call.changes:
                changed.append(call)
    if terminal.as_json:
        terminal.print_json(
            {
                "policy": None if policy is None else policy.name,
                "digest": None if policy is None else policy.digest,
                "judged": judged,
                "changed": [_change(call) for call in changed],
                "not_judged": [_change(call) for call in unjudged],
            }
        )
    elif changed:
        terminal.print_table(
            ("WHEN", "SESSION", "CALL", "THEN", "NOW", "REASON"), [_row(call) for call in changed]
        )
    verb = "differed" if shadow else "would change"
    terminal.say(f"{_count(judged, 'call')} judged: {len(changed)} {verb}{_kinds(changed)}")
    for why, count in Counter(call.why_not for call in unjudged).items():
        terminal.say(f"{_count(count, 'call')} not judged: {why}")
    if by_path:
        terminal.say("paths are judged as they were written; where links led is not recorded")
    raise typer.Exit(NO if strict and changed else OK)


def _records(store: "Store", session: str | None, since: float | None) -> "Iterator[Record]":
    after = 0
    while page := store.calls(session_id=session, after=after, limit=PAGE):
        after = page[-1][0]
        for _, record in page:
            if since is None or record.started_at >= since:
                yield record


def _row(call: "Replayed") -> tuple[str, ...]:
    assert call.now is not None
    record = call.record
    return (
        local_time(record.started_at),
        record.session_id,
        _short(f"{record.tool} {record.arguments}"),
        _said(call.then),
        _said(call.now),
        call.now.reason,
    )


def _change(call: "Replayed") -> dict[str, Any]:
    record = call.record
    row = {
        "call": record.call_id,
        "session": record.session_id,
        "started_at": record.started_at,
        "tool": record.tool,
        "arguments": record.arguments,
        "then": asdict(call.then),
    }
    return {**row, "why": call.why_not} if call.now is None else {**row, "now": asdict(call.now)}


def _kinds(changed: "Sequence[Replayed]") -> str:
    kinds = Counter(f"{call.then.verdict} -> {call.now.verdict}" for call in changed if call.now)
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f" ({shown})" if shown else ""


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# A first policy.


def init(
    context: typer.Context,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", "-s", metavar="ID", help="Whose calls. Default: the session used last."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file, which must not exist."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make a policy to start from, of the calls that a session made.

    It allows what ran there, as narrowly as can be said, and proves it by these calls. What
    runs other code, leaves the workspace or can't be told beforehand is left in comments for
    you to decide.
    """
    from runner.app import open_store
    from runner.policy.starting import starting_policy
    from runner.settings import Settings

    terminal = terminal_of(context)
    with open_store(Settings.read()) as store:
        chosen = _used_last(store) if session is None else session
        if session is not None and store.session(session) is None:
            raise no_session(session)
        records = [] if chosen is None else list(_records(store, chosen, None))
    text = starting_policy(records, "any session" if chosen is None else f"session {chosen}")
    if output is None:
        terminal.print_text(text)
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise typer.BadParameter(
            f"{output} is there already; name another file", param_hint="--output"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise typer.BadParameter(str(error), param_hint="--output") from error
    terminal.say(f"wrote {output}; read it, then run `runner policy check {output}`")


def _used_last(store: "Store") -> str | None:
    """The session that made the newest call."""
    newest = (
        (last[0].started_at, info.id)
        for info in store.sessions(include_ended=True)
        if (last := store.recent_calls(info.id, limit=1))
    )
    return max(newest, default=(0.0, None))[1]
