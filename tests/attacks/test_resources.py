"""Calls that take all there is: time, memory, processes, disk, output.

Rows that end after 60 seconds run here with shorter limits. Whatever a row did, the session
is there for the next call, and nothing of the row is left.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner import Runner, Session, Status, ToolResult
from runner.settings import Limits
from tests.attacks.corpus import Row, rows
from tests.attacks.test_paths import ROWS as ROWS_ABOUT_PATHS
from tests.attacks.waiting import WAITING

pytestmark = pytest.mark.docker

MIB = 1024**2
FILE_SIZE_BYTES = 96 * MIB
TMP_BYTES = 32 * MIB
SHM_BYTES = 64 * MIB
SHORT_S = 1.0


@pytest.fixture(scope="module")
def session(docker_runner: Runner, carrier: str) -> Iterator[Session]:
    """One with less room than usual, so that filling it takes less time."""
    limits = Limits(memory_bytes=384 * MIB, file_size_bytes=FILE_SIZE_BYTES, tmp_bytes=TMP_BYTES)
    with docker_runner.session(carrier=carrier, limits=limits) as one:
        yield one


@pytest.fixture
def workspace(session: Session) -> Iterator[Path]:
    path = Path(session.info.workspace)
    yield path
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def times_out(result: ToolResult, workspace: Path) -> None:
    assert result.status is Status.TIMED_OUT
    assert result.error == f"bash: timed out after {SHORT_S:g}s"
    assert result.duration_s < SHORT_S + 5


def is_cut(result: ToolResult, workspace: Path) -> None:
    assert result.truncated is not None
    assert len(result.output) < 1.1 * MIB
    assert f"{result.truncated.omitted_bytes} bytes" in result.output


def is_cut_in_time(result: ToolResult, workspace: Path) -> None:
    times_out(result, workspace)
    is_cut(result, workspace)


def takes_addresses_only(result: ToolResult, workspace: Path) -> None:
    """64 GiB of addresses cost nothing; what is touched counts: see the test of memory."""
    assert result.status in (Status.OK, Status.FAILED)


def stops_at_the_largest_file(result: ToolResult, workspace: Path) -> None:
    (file,) = workspace.iterdir()
    assert file.stat().st_size == FILE_SIZE_BYTES
    assert result.is_error
    assert shutil.disk_usage(workspace).free > FILE_SIZE_BYTES


def makes_no_file_of_that_size(result: ToolResult, workspace: Path) -> None:
    assert "File too large" in result.output or "File size limit" in result.output
    for file in workspace.iterdir():
        assert file.stat().st_size <= FILE_SIZE_BYTES


def fills_what_is_in_memory_only(result: ToolResult, workspace: Path) -> None:
    assert result.output.count("No space left on device") == 2
    sizes = re.findall(r"^(\d+) bytes", result.output, re.MULTILINE)
    assert [int(size) for size in sizes] == [TMP_BYTES, SHM_BYTES]
    assert list(workspace.iterdir()) == []


def can_be_removed(result: ToolResult, workspace: Path) -> None:
    assert (workspace / "d/d/d/d").is_dir()


def says_that_there_are_no_more_threads(result: ToolResult, workspace: Path) -> None:
    assert "can't start new thread" in result.output


def says_that_too_many_files_are_open(result: ToolResult, workspace: Path) -> None:
    assert "Too many open files" in result.output
    assert result.exit_code == 1


def leaves_no_core(result: ToolResult, workspace: Path) -> None:
    assert "Segmentation fault\n" in result.output, "it did crash, and dumped nothing"
    assert list(workspace.iterdir()) == []


def is_held_by_memory(result: ToolResult, workspace: Path) -> None:
    """It needs a gigabyte to make. What it makes is for nobody here to unpack."""
    assert "MemoryError" in result.output or "Killed" in result.output
    assert all(file.stat().st_size <= FILE_SIZE_BYTES for file in workspace.iterdir())


@dataclass(frozen=True)
class Drain:
    """What a row means, and how it is made to take less time."""

    check: Callable[[ToolResult, Path], None]
    timeout_s: float | None = None
    instead: tuple[str, str] | None = None
    """A part of the command, and what stands for it."""


DRAINS: dict[str, Drain] = {
    "RS-003": Drain(takes_addresses_only),
    "RS-004": Drain(stops_at_the_largest_file),
    "RS-005": Drain(makes_no_file_of_that_size),
    "RS-007": Drain(fills_what_is_in_memory_only),
    "RS-008": Drain(can_be_removed),
    "RS-009": Drain(is_cut_in_time, timeout_s=SHORT_S),
    "RS-011": Drain(is_cut),
    "RS-012": Drain(times_out, timeout_s=SHORT_S),
    "RS-015": Drain(times_out, timeout_s=SHORT_S),
    # It would wait 99 seconds for its threads before it says what it met.
    "RS-016": Drain(says_that_there_are_no_more_threads, instead=("(99,)", "(2,)")),
    "RS-017": Drain(says_that_too_many_files_are_open),
    "RS-018": Drain(leaves_no_core),
    "RS-019": Drain(is_held_by_memory),
    "RS-020": Drain(times_out, timeout_s=SHORT_S),
}
ROWS = set(DRAINS)


@pytest.mark.parametrize("row", [row for row in rows() if row.id in DRAINS], ids=lambda row: row.id)
def test_the_row_costs_the_call_and_not_the_session(
    row: Row, session: Session, workspace: Path
) -> None:
    drain = DRAINS[row.id]
    container = session.info.container_id
    command = row.command.replace(*drain.instead) if drain.instead else row.command

    result = session.bash(command, timeout_s=drain.timeout_s)

    drain.check(result, workspace)
    assert result.is_error or row.verdict == "contained"
    assert session.bash("rm -rf /tmp/x /dev/shm/x; echo alive").output == "alive\n"
    assert session.info.container_id == container, "it is still the same container"


def test_memory_that_is_touched_counts(session: Session) -> None:
    """What RS-003 asks for, and uses."""
    touch = "import mmap\nl=[mmap.mmap(-1,1<<30) for _ in range(64)]\nfor m in l: m[:]=bytes(1<<30)"

    result = session.bash(f'python3 -c "{touch}"')

    assert result.status is Status.OOM_KILLED
    assert session.bash("echo alive").output == "alive\n"


def test_a_tree_deeper_than_a_path_can_be_goes_with_its_session(
    docker_runner: Runner, carrier: str
) -> None:
    """The second half of RS-008 does not get there: its `mkdir` meets what the first half made."""
    deeper = "import os\nfor i in range(3000): os.mkdir('d'); os.chdir('d')"
    with docker_runner.session(carrier=carrier) as session:
        workspace = Path(session.info.workspace)
        assert session.bash(f'python3 -c "{deeper}"').status is Status.OK
        depth = int(session.bash("find /workspace -type d | wc -l").output)
        session.bash("chmod 0 /workspace/d/d")

    assert 2 * depth > 4096, "deeper than a path can be long"
    assert not os.path.lexists(workspace)


def test_a_download_has_a_limit(session: Session, workspace: Path) -> None:
    """Of a large file: read in the container, and never held here."""
    session.bash("truncate -s 17M /workspace/b.zip")

    result = session.read("/workspace/b.zip")

    assert result.status is Status.FAILED
    assert "file too large" in str(result.error)


def test_rows_about_resources_are_here_or_wait() -> None:
    ours = {row.id for row in rows(["resource"])}

    assert ours <= ROWS | ROWS_ABOUT_PATHS | WAITING.keys()
