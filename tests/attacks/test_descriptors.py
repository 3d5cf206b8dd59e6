"""What a call can try against the helper and its own supervisor."""

from collections.abc import Callable

import pytest

from runner import Session, Status, ToolResult
from tests.attacks.corpus import Row, rows

pytestmark = pytest.mark.docker


def has_three_descriptors(result: ToolResult) -> None:
    stdin, *outputs = result.output.splitlines()
    assert stdin == "/dev/null"
    assert len(outputs) == 2
    assert all(output.startswith("pipe:[") for output in outputs)


def is_denied_twice(result: ToolResult) -> None:
    assert result.output.count("Permission denied") == 2
    assert result.is_error


def is_killed_alone(result: ToolResult) -> None:
    assert (result.status, result.error) == (Status.FAILED, "bash: signal: killed")


def has_its_status(result: ToolResult) -> None:
    assert (result.status, result.exit_code, result.output) == (Status.OK, 0, "")


CHECKS: dict[str, Callable[[ToolResult], None]] = {
    "PR-018": has_three_descriptors,
    "PR-019": is_denied_twice,
    "PR-020": is_killed_alone,
    "PR-023": has_its_status,
}
ROWS = set(CHECKS)


@pytest.mark.parametrize("row", [row for row in rows() if row.id in CHECKS], ids=lambda row: row.id)
def test_the_call_is_all_that_it_costs(row: Row, session: Session) -> None:
    container = session.info.container_id

    CHECKS[row.id](session.bash(row.command))

    assert session.bash("echo alive").output == "alive\n"
    assert session.info.container_id == container, "it is still the same helper"
