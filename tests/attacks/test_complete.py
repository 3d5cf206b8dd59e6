"""Every row is run, or waits for a reason that still holds."""

import pytest

from tests.attacks import (
    test_descriptors,
    test_inputs,
    test_mcp,
    test_output,
    test_paths,
    test_policy,
    test_probes,
    test_resources,
)
from tests.attacks.corpus import rows
from tests.attacks.waiting import WAITING, Reason

RUN = (
    test_descriptors.ROWS
    | test_inputs.ROWS
    | test_mcp.ROWS
    | test_output.ROWS
    | test_paths.ROWS
    | test_policy.ROWS
    | test_probes.ROWS
    | test_resources.ROWS
)
AREAS = (
    *("schema", "policy-bypass", "path-escape", "output", "resource"),
    "container-escape-probe",
)


def test_every_row_is_run_or_waits() -> None:
    concerned = {row.id for row in rows(AREAS)} | {
        row.id for row in rows(["protocol"]) if row.tool == "bash"
    }
    # Of the area `api`, what concerns the server that there is.
    concerned |= {row.id for row in rows(["api"]) if row.tool == "mcp" or row.id == "AP-007"}

    assert concerned == RUN | WAITING.keys()


def test_no_row_that_is_run_waits() -> None:
    assert not RUN & WAITING.keys()


@pytest.mark.docker
@pytest.mark.parametrize(
    "reason", dict.fromkeys(WAITING.values()), ids=lambda reason: reason.text[:40]
)
def test_a_row_waits_only_as_long_as_it_has_to(reason: Reason) -> None:
    assert reason.holds(), f"run {[id for id, why in WAITING.items() if why is reason]} now"
