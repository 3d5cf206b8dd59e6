"""The reference's calls, carried out in a plain directory.

The same cases run through real containers elsewhere; here they show in a second what a
change of a tool does.
"""

from pathlib import Path

import pytest

from runner.tools import ToolLimits, default_registry
from tests.conformance import reference
from tests.conformance.reference import Case
from tests.helper.local_sandbox import local_sandbox
from tests.tools.calling import call


@pytest.mark.parametrize("case", reference.cases(), ids=lambda case: case.id)
def test_a_call_comes_out_as_in_the_reference(case: Case, tmp_path: Path) -> None:
    reference.lay_out(case, tmp_path)
    before = reference.snapshot(tmp_path)
    tool = default_registry().get(case.tool)
    assert tool is not None

    outcome = call(
        tool,
        case.input,
        local_sandbox(tmp_path),
        limits=ToolLimits(grep_max_matches=case.max_matches or 200),
        timeout_s=case.timeout_s or 60.0,
    )

    reference.check(
        case,
        output=outcome.output,
        error=outcome.error,
        before=before,
        after=reference.snapshot(tmp_path),
    )
