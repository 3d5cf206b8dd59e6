"""Exit statuses: a command's own are passed on, ours mean what the table says."""

import re
from pathlib import Path

import pytest

from runner.cli.exits import MEANINGS, NOTE, exit_status
from runner.errors import EXITS
from runner.model import Status, ToolResult

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def result(status: Status, exit_code: int | None = None) -> ToolResult:
    return ToolResult(call_id="c", tool="bash", status=status, exit_code=exit_code)


@pytest.mark.parametrize(
    ("status", "exit_code", "expected"),
    [
        (Status.OK, 0, 0),
        (Status.OK, None, 0),
        (Status.FAILED, 7, 7),
        (Status.FAILED, 120, 120),
        (Status.FAILED, 255, 255),
        (Status.FAILED, None, 1),
        (Status.TIMED_OUT, None, 124),
        (Status.DENIED, None, 120),
        (Status.INVALID, None, 121),
        (Status.LOST, None, 122),
        (Status.CANCELLED, None, 123),
        (Status.OOM_KILLED, 137, 137),
        (Status.OOM_KILLED, 1, 1),
        (Status.OOM_KILLED, 0, 137),
        (Status.OOM_KILLED, None, 137),
    ],
)
def test_the_commands_own_status_is_passed_on_where_there_is_one(
    status: Status, exit_code: int | None, expected: int
) -> None:
    assert exit_status(result(status, exit_code)) == expected


def test_a_call_of_ours_that_ended_the_command_never_passes_its_status_on() -> None:
    assert exit_status(result(Status.TIMED_OUT, 0)) == 124
    assert exit_status(result(Status.CANCELLED, 0)) == 123


def _documented() -> set[int]:
    return {int(number) for row in MEANINGS for number in re.findall(r"\d+", row.status)}


def test_every_status_that_we_exit_with_is_in_the_table() -> None:
    ours = {exit_status(result(status)) for status in Status}
    ours |= {row.status for row in EXITS.values()}
    assert ours <= _documented()


def test_the_documentation_has_the_same_table() -> None:
    text = DOCUMENT.read_text()
    for row in MEANINGS:
        assert f"| {row.status} | {row.meaning} |" in text
    assert NOTE in " ".join(text.split())
