"""A race between whoever judges a path and whoever swaps what it leads through.

A directory of the workspace and a link out of it change places, thousands of times a second,
while files below it are looked up, judged, read and written. The first test shows that this is
how one gets out where what was judged is not held to; in the second nobody may.
"""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runner import AsyncRunner, Settings
from runner.answers import RequestFailed
from runner.sandbox import Sandbox

pytestmark = [
    pytest.mark.docker,
    pytest.mark.anyio,
    pytest.mark.usefixtures("clean_daemon"),
]

SWAPS = 10_000
ROUNDS = 300
PATIENCE = 2_000
"""Rounds after which what has to happen by chance counts as impossible."""
INSIDE, SECRET = b"inside", b"secret"

SWAPPER = """
import ctypes, select, sys

AT_FDCWD, RENAME_EXCHANGE = -100, 2
exchange = ctypes.CDLL(None, use_errno=True).renameat2
one, other = (name.encode() for name in sys.argv[1:3])
swaps = 0
asked = False
while swaps < int(sys.argv[3]) or not asked:
    if exchange(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) != 0:
        sys.exit(f"errno {ctypes.get_errno()}")
    swaps += 1
    # A moment for the others: without any, nobody else gets at the directory.
    asked = bool(select.select([] if asked else [0], [], [], 0.00005)[0]) or asked
print(swaps)
"""


@contextlib.asynccontextmanager
async def swapping(directory: Path, link: Path) -> AsyncIterator[None]:
    """Two names are exchanged all the time, and often enough."""
    swapper = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SWAPPER, str(directory), str(link), str(SWAPS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield
        said, _ = await swapper.communicate(b"enough")
        assert int(said) >= SWAPS
    finally:
        if swapper.returncode is None:
            swapper.kill()
            await swapper.wait()


@pytest.fixture
async def sandbox(settings: Settings, carrier: str) -> AsyncIterator[tuple[Sandbox, Path]]:
    """A container with a secret outside of its workspace, and a directory that a link will replace.

    Both have a file of the same name, and may be written by calls.
    """
    async with (
        AsyncRunner("default", settings=settings) as runner,
        runner.session(carrier=carrier) as session,
    ):
        made = await session.sandbox()
        await made.write("/tmp/outside/f", SECRET)
        await made.write("/workspace/d/f", INSIDE)
        workspace = Path(session.info.workspace)
        (workspace / "link").symlink_to("/tmp/outside")
        yield made, workspace


async def judge(sandbox: Sandbox, path: str) -> str | None:
    """Where a path leads, if that is in the workspace."""
    try:
        judged = await sandbox.resolve(path)
    except RequestFailed:  # it was swapped under the very look
        return None
    return judged if judged.startswith("/workspace/") else None


async def test_what_is_judged_and_then_followed_gets_out(sandbox: tuple[Sandbox, Path]) -> None:
    made, workspace = sandbox
    read_outside = wrote_outside = False
    async with swapping(workspace / "d", workspace / "link"):
        for number in range(PATIENCE):
            if await judge(made, "/workspace/d/f"):
                read_outside |= await made.read("/workspace/d/f", limit_bytes=99) == SECRET
            name = f"/workspace/d/{number}"
            if not wrote_outside and await judge(made, name):
                with contextlib.suppress(RequestFailed):
                    await made.write(name, INSIDE)
                with contextlib.suppress(RequestFailed):
                    await made.read(f"/tmp/outside/{number}", limit_bytes=99)
                    wrote_outside = True
            if read_outside and wrote_outside:
                break
    assert read_outside
    assert wrote_outside


async def test_what_is_judged_and_then_held_to_stays_where_it_was_judged(
    sandbox: tuple[Sandbox, Path],
) -> None:
    made, workspace = sandbox
    came: Counter[str] = Counter()
    async with swapping(workspace / "d", workspace / "link"):
        for number in range(PATIENCE):
            for path in ("/workspace/d/f", f"/workspace/d/made/{number}"):
                judged = await judge(made, path)
                if judged is None:
                    came["refused"] += 1
                    continue
                try:
                    if path.endswith("/f"):
                        assert await made.read(path, limit_bytes=99, judged=judged) == INSIDE
                        await made.replace(path, INSIDE, INSIDE, limit_bytes=99, judged=judged)
                        await made.write(path, INSIDE, judged=judged)
                    else:
                        await made.write(path, INSIDE, judged=judged)
                    came["done"] += 1
                except RequestFailed as failure:
                    came[failure.code] += 1
            if number >= ROUNDS and came["done"] and came["moved"] and came["refused"]:
                break
    assert await made.read("/tmp/outside/f", limit_bytes=99) == SECRET
    listing = await made.run(["ls", "-A", "/tmp/outside"], deadline_s=10)
    assert listing.output == b"f\n"
    assert set(came) == {"done", "moved", "refused"}, came
    (real,) = (path for path in (workspace / "d", workspace / "link") if not path.is_symlink())
    assert {path.name for path in real.iterdir()} == {"f", "made"}
    assert len(list((real / "made").iterdir())) >= 1
