"""Inputs that fit no schema are refused before anything is decided, run, or believed."""

from pathlib import Path

import pytest

from runner import Session, Status
from tests.attacks.corpus import Row, rows

pytestmark = pytest.mark.docker

ROWS = {row.id for row in rows(["schema"])}


@pytest.mark.parametrize("row", rows(["schema"]), ids=lambda row: row.id)
def test_an_input_outside_its_schema_is_refused(row: Row, session: Session) -> None:
    workspace = Path(session.info.workspace)
    assert row.verdict == "error"

    result = session.call(row.tool, row.raw)

    assert result.status is Status.INVALID
    assert row.words in str(result.error)
    assert result.decision is None, "no policy was asked about it"
    assert result.output == ""
    assert list(workspace.iterdir()) == []
