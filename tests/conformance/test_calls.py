"""Every recorded call of rousseau-agent's tools, through a real container, over both carriers.

Each case runs on a fresh workspace: a directory of the host that is mounted into one session
and emptied between cases. How strictly a case holds is `reference`'s matter; here besides,
nothing else in the workspace may change.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from runner import Runner, Session, Status
from runner.tools import default_registry
from tests.conformance import reference
from tests.conformance.reference import Case
from tests.conftest import make_settings

OWNER = 1001
"""Of the workspace, and so of the calls; where the tests are not root's it is their own user."""
DIRECTORY = None
REMOVED = {"bash-61": {"a.txt"}}
"""What cases remove: `changed` tells of new content only."""
MADE: dict[str, dict[str, bytes | str | None]] = {
    "bash-62": {"l": "link a.txt"},
    "write-long": {"l.txt": b"y" * 100_000},
}
"""What cases make beside what `changed` tells of: links, and a file too long for the data."""
STATUS = {
    "write-missing-content": Status.INVALID,
    "write-unknown-field": Status.INVALID,
    "bash-timeout": Status.TIMED_OUT,
}
"""How the calls end whose error is neither the tool's nor the command's own."""

Tree = dict[str, bytes | str | None]
"""What is below the workspace: a file's bytes, `link TARGET`, or None for a directory."""


class Bench(NamedTuple):
    """Two sessions on one workspace."""

    workspace: Path
    session: Session
    session_with_five_matches: Session
    """Its grep stops at five."""

    def session_for(self, case: Case) -> Session:
        assert case.max_matches in (None, 5), "the bench has sessions for these two"
        return self.session_with_five_matches if case.max_matches else self.session


@pytest.fixture(scope="module")
def bench(
    docker_runner: Runner, carrier: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    workspace = tmp_path_factory.mktemp("workspace")
    own(workspace)
    settings = make_settings(tmp_path_factory.mktemp("five"), grep_max_matches=5)
    with (
        docker_runner.session(workspace=workspace, carrier=carrier) as session,
        Runner("default", settings=settings) as runner_with_five,
        runner_with_five.session(workspace=workspace, carrier=carrier) as session_with_five,
    ):
        yield Bench(workspace, session, session_with_five)


def own(path: Path) -> None:
    """Give a file to the workspace's owner."""
    if os.getuid() == 0:
        os.lchown(path, OWNER, OWNER)


def fill(workspace: Path, case: Case) -> None:
    """Make the workspace hold the files of a case and nothing else."""
    for old in workspace.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    reference.lay_out(case, workspace)
    for path in workspace.rglob("*"):
        own(path)


def tree(workspace: Path) -> Tree:
    found: Tree = {}
    for path in workspace.rglob("*"):
        name = path.relative_to(workspace).as_posix()
        if path.is_symlink():
            found[name] = f"link {path.readlink()}"
        elif path.is_dir():
            found[name] = DIRECTORY
        else:
            found[name] = path.read_bytes()
    return found


def expected_tree(case: Case, before: Tree) -> Tree:
    """The workspace after a case: what changed, the directories that this took, and the rest."""
    expected = {**before, **MADE.get(case.id, {})}
    for name in REMOVED.get(case.id, ()):
        del expected[name]
    if STATUS.get(case.id) is Status.INVALID:
        return expected
    for name, spec in case.expect["changed"].items():
        for parent in Path(name).parents[:-1]:
            expected.setdefault(parent.as_posix(), DIRECTORY)
        expected[name] = reference.content(spec)
    return expected


@pytest.mark.docker
@pytest.mark.parametrize("case", reference.cases(), ids=lambda case: case.id)
def test_call_gives_what_the_reference_gave(case: Case, bench: Bench) -> None:
    fill(bench.workspace, case)
    files, before = reference.snapshot(bench.workspace), tree(bench.workspace)

    result = bench.session_for(case).call(case.tool, case.input, timeout_s=case.timeout_s)

    reference.check(
        case,
        output=result.output,
        error=result.error,
        before=files,
        after=reference.snapshot(bench.workspace),
    )
    assert tree(bench.workspace) == expected_tree(case, before)
    assert result.is_error == (result.error is not None)
    assert result.status is STATUS.get(case.id, result.status)


@pytest.mark.docker
@pytest.mark.parametrize("id", ["read-latin1", "grep-latin1", "bash-10"])
def test_bytes_that_are_no_utf8_are_counted(id: str, bench: Bench) -> None:
    """The reference returns raw bytes where text of U+FFFD stands here."""
    (case,) = (case for case in reference.cases() if case.id == id)
    fill(bench.workspace, case)

    result = bench.session.call(case.tool, case.input)

    assert result.status is Status.OK
    assert result.details["undecodable_bytes"] == result.output.count("\N{REPLACEMENT CHARACTER}")


def test_definitions_are_those_of_the_reference() -> None:
    definitions = json.loads((reference.DATA / "definitions.json").read_text(encoding="utf-8"))

    assert default_registry().definitions("rousseau") == definitions
