"""What stands between a call and the container: paths that lead elsewhere, rates, trials."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from runner import AsyncRunner, AsyncSession, ConfigurationError, Policy, Status
from runner.model import Record
from runner.testing import FakeEngine
from tests.conftest import make_settings

pytestmark = pytest.mark.anyio

Open = Callable[[str | Path], AbstractAsyncContextManager[tuple[AsyncRunner, AsyncSession]]]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A directory with a few things in it."""
    directory = tmp_path / "work"
    (directory / "secret").mkdir(parents=True)
    (directory / "a.txt").write_text("a needle\n")
    (directory / "secret" / "key").write_text("the needle\n")
    (directory / "link").symlink_to("secret/key")
    (directory / "loop").symlink_to("loop")
    (directory / "good").symlink_to("a.txt")
    return directory


@pytest.fixture
def open_session(tmp_path: Path, workspace: Path) -> Open:
    """A session on that directory, under a policy."""

    @asynccontextmanager
    async def opened(policy: str | Path) -> AsyncIterator[tuple[AsyncRunner, AsyncSession]]:
        given = policy if isinstance(policy, Path) else Policy.parse(policy)
        settings = make_settings(tmp_path / "data")
        async with (
            AsyncRunner(given, engine=FakeEngine(), settings=settings) as runner,
            runner.session(workspace=workspace) as session,
        ):
            yield runner, session

    return opened


def records(runner: AsyncRunner) -> list[Record]:
    """Every record, oldest first."""
    return [record for _, record in runner.controller.store.calls()]


NO_SECRETS = "default: allow\ndeny: [{tool: '*', path: '/secret(/|$)'}]\n"


async def test_a_link_is_judged_by_where_it_leads(open_session: Open) -> None:
    async with open_session(NO_SECRETS) as (runner, session):
        refused = await session.read("/workspace/link")
        assert refused.status is Status.DENIED
        assert "needle" not in refused.text
        assert (await session.read("/workspace/good")).output == "a needle\n"
        written = await session.write("/workspace/link", "mine")
        assert written.status is Status.DENIED
        assert [record.rule for record in records(runner)] == ["deny[0]", "default", "deny[0]"]


async def test_a_path_that_leads_nowhere_is_the_calls_failure(open_session: Open) -> None:
    async with open_session(NO_SECRETS) as (runner, session):
        result = await session.read("/workspace/loop")
        assert result.status is Status.FAILED
        assert result.error is not None
        assert result.error.startswith("read: open /workspace/loop: too many levels")
        assert records(runner)[0].status is Status.FAILED


async def test_the_model_is_told_of_the_path_that_it_gave(open_session: Open) -> None:
    async with open_session(NO_SECRETS) as (_, session):
        assert (await session.write("/workspace/good", "x")).output == (
            "wrote 1 bytes to /workspace/good"
        )
        missing = await session.read("/workspace/none")
        assert missing.error == "read: open /workspace/none: no such file or directory"


async def test_a_search_leaves_out_what_could_not_be_read(open_session: Open) -> None:
    async with open_session(NO_SECRETS) as (_, session):
        found = await session.grep("needle")
        assert found.output.splitlines() == [
            "/workspace/a.txt:1: a needle",
            "/workspace/good:1: a needle",
        ]
    async with open_session("default: allow\n") as (_, session):
        assert "secret/key" in (await session.grep("needle")).output


async def test_protected_files_are_refused_behind_links(
    open_session: Open, workspace: Path
) -> None:
    (workspace / ".git").mkdir()
    (workspace / "innocent").symlink_to(".git/config")
    async with open_session("version: 1\ndefault: allow\n") as (_, session):
        for path in ("/workspace/.git/config", "/workspace/innocent"):
            result = await session.write(path, "x")
            assert result.status is Status.DENIED
            assert result.decision is not None
            assert result.decision.rule == "protect"
    assert not (workspace / ".git" / "config").exists()


RATED = """
default: deny
rate: {calls: 4, per_s: 3600}
allow:
  - {tool: read, rate: {calls: 2, per_s: 3600}}
  - {tool: grep}
"""


async def test_a_rate_is_kept_for_a_rule_and_for_all(open_session: Open) -> None:
    async with open_session(RATED) as (_, session):
        said = [(await session.read("/workspace/a.txt")).status for _ in range(3)]
        assert said == [Status.OK, Status.OK, Status.DENIED]
        assert (await session.grep("x")).status is Status.OK
        assert (await session.grep("x")).status is Status.OK
        last = await session.grep("x")
        assert last.decision is not None
        assert last.decision.rule == "policy.rate"
        assert "more than 4 calls in 3600 s for this session; wait" in last.text


async def test_calls_at_once_do_not_slip_through_a_rate(open_session: Open) -> None:
    async with open_session(RATED) as (_, session):
        results = await asyncio.gather(*(session.read("/workspace/a.txt") for _ in range(10)))
        assert [result.status for result in results].count(Status.OK) == 2


async def test_a_rate_is_kept_over_a_restart_for_a_tenant(tmp_path: Path) -> None:
    text = "default: allow\nrate: {calls: 2, per_s: 3600, per: tenant}\n"
    settings = make_settings(tmp_path / "data")

    async def read(tenant: str) -> Status:
        async with (
            AsyncRunner(Policy.parse(text), engine=FakeEngine(), settings=settings) as runner,
            runner.session(tenant=tenant) as session,
        ):
            return (await session.read("/workspace/none")).status

    assert [await read("a"), await read("a"), await read("a")] == [
        Status.FAILED,
        Status.FAILED,
        Status.DENIED,
    ]
    assert await read("b") is Status.FAILED


async def test_a_policy_on_trial_is_asked_and_decides_nothing(open_session: Open) -> None:
    async with open_session("default: allow\nshadow: read-only\n") as (runner, session):
        assert (await session.bash("echo hi")).status is Status.OK
        assert (await session.read("/workspace/a.txt")).status is Status.OK
        said = [json.loads(record.shadow) for record in records(runner)]
        assert [(one["verdict"], one["rule"]) for one in said] == [
            ("deny", "default"),
            ("allow", "allow[0]"),
        ]
        assert {one["policy"] for one in said} == {Policy.named("read-only").digest}


async def test_a_changed_file_decides_the_next_call(
    open_session: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.policy.source.LOOK_EVERY_S", 0.0)
    file = tmp_path / "policy.yaml"
    file.write_text("default: allow\n")
    async with open_session(file) as (runner, session):
        before = runner.policy.digest
        assert (await session.bash("echo hi")).status is Status.OK
        file.write_text("default: deny\n")
        assert (await session.bash("echo hi")).status is Status.DENIED
        file.write_text("default: whatever\n")
        assert (await session.bash("echo hi")).status is Status.DENIED
        file.write_text("default: allow\n")
        assert (await session.bash("echo hi")).status is Status.OK
        digests = [record.policy for record in records(runner)]
    assert digests[0] == digests[3] == before
    assert digests[1] == digests[2] != before


async def test_a_policy_in_a_workspace_that_calls_can_write_is_refused(
    tmp_path: Path, workspace: Path
) -> None:
    file = workspace / "policy.yaml"
    file.write_text("default: allow\n")
    (tmp_path / "elsewhere").symlink_to(workspace)
    settings = make_settings(tmp_path / "data")
    async with AsyncRunner(file, engine=FakeEngine(), settings=settings) as runner:
        for directory in (workspace, tmp_path / "elsewhere", tmp_path):
            with pytest.raises(ConfigurationError, match="lies in the workspace"):
                await runner.open_session(workspace=directory)
        async with runner.session(workspace=workspace, read_only=True) as session:
            assert (await session.read("/workspace/a.txt")).status is Status.OK
    kept = tmp_path / "other.yaml"
    kept.write_text("default: allow\n")
    async with AsyncRunner(kept, engine=FakeEngine(), settings=settings) as runner:
        session = await runner.open_session(workspace=workspace, kept=True)
        await session.close()
    async with AsyncRunner(file, engine=FakeEngine(), settings=settings) as runner:
        with pytest.raises(ConfigurationError, match="lies in the workspace"):
            await runner.attach(session.id)
