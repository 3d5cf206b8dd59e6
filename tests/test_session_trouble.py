"""Sessions where the engine, the helper or the disk is not as it should be: on the fake engine."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from runner import (
    AsyncRunner,
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    RemoteProtocolError,
    SandboxLost,
    SessionBusy,
    SessionEnded,
    Settings,
    Status,
    StoreError,
    WorkspaceError,
)
from runner import containers as containers_module
from runner.audit import AuditEvent
from runner.carrier import Carrier
from runner.engine import ContainerInfo, ContainerSpec, EngineVersion
from runner.helper.wire import Kind
from runner.lock import Lock
from runner.testing import FakeEngine, memory_carriers
from runner.workspace import remove_tree
from tests.puppet import HELLO, Puppet

pytestmark = pytest.mark.anyio


def session_events(runner: AsyncRunner) -> list[str]:
    rows = runner.controller.store.audit_rows()
    return [row.event for row in rows if row.event.startswith("session.")]


# Ways in.


class Local(FakeEngine):
    """Says that it is on this machine, though nothing in its containers dials."""

    def __init__(self) -> None:
        super().__init__()
        self.carriers: list[str] = []

    async def version(self) -> EngineVersion:
        """See `Engine`."""
        return replace(await super().version(), local=True)

    async def create(self, spec: ContainerSpec) -> str:
        """See `Engine`."""
        self.carriers.append(spec.labels["rousseau-runner.carrier"])
        return await super().create(spec)


@pytest.fixture
def short_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers_module, "SOCKET_TRIAL_S", 0.05)


async def test_a_helper_that_does_not_dial_is_reached_through_the_daemon(
    settings: Settings, short_trial: None
) -> None:
    engine = Local()
    async with (
        AsyncRunner("default", settings=settings, engine=engine) as runner,
        runner.session() as session,
    ):
        assert engine.carriers == ["socket", "attach"]
        assert (await session.bash("echo hi")).output == "hi\n"
        assert len(await engine.containers({})) == 1


async def test_a_helper_that_was_to_dial_and_does_not_is_an_error_that_says_what_else_there_is(
    settings: Settings, short_trial: None
) -> None:
    engine = Local()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        with pytest.raises(SandboxLost, match="attach"):
            await runner.open_session(carrier="socket")
        assert engine.carriers == ["socket"]
        assert await engine.containers({}) == []


async def test_a_runtime_that_lets_nothing_dial_is_not_waited_for(settings: Settings) -> None:
    engine = Local()
    async with (
        AsyncRunner("default", settings=settings, engine=engine) as runner,
        runner.session(runtime="runsc"),
    ):
        assert engine.carriers == ["attach"]


class Outdated(FakeEngine):
    """After its first stream, one container's helper speaks another version of the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = 0

    async def attach(self, container: str) -> Carrier:
        """See `Engine`."""
        self.streams += 1
        if self.streams != 2:
            return await super().attach(container)
        ours, theirs = memory_carriers()
        Puppet(theirs, greet=lambda puppet: puppet.send(Kind.HELLO, 0, {**HELLO, "version": 99}))
        return ours


async def test_a_kept_session_with_a_helper_of_another_version_gets_a_new_container(
    settings: Settings,
) -> None:
    engine = Outdated()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        first = await runner.open_session(kept=True)
        await first.write("/workspace/f", "kept")
        await first.close()
        second = await runner.attach(first.id)
        assert (await second.read("/workspace/f")).output == "kept"
        assert second.info.container_id != first.info.container_id
        assert len(await engine.containers({})) == 1
        assert session_events(runner) == ["session.opened", "session.rebuilt", "session.adopted"]
        await runner.close_session(first.id)


async def test_a_helper_of_another_version_in_a_new_container_is_an_error(
    settings: Settings,
) -> None:
    engine = Outdated()
    engine.streams = 1
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        with pytest.raises(RemoteProtocolError, match="version 99"):
            await runner.open_session()
        assert await engine.containers({}) == []
        assert runner.sessions() == []


async def test_an_image_without_a_shell_is_refused(settings: Settings) -> None:
    class Shellless(FakeEngine):
        async def attach(self, container: str) -> Carrier:
            ours, theirs = memory_carriers()
            Puppet(
                theirs, greet=lambda puppet: puppet.send(Kind.HELLO, 0, {**HELLO, "shell": False})
            )
            return ours

    engine = Shellless()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        with pytest.raises(EngineError, match="no /bin/sh"):
            await runner.open_session()
        assert await engine.containers({}) == []


async def test_a_directory_for_sockets_that_others_may_write_to_is_refused(
    settings: Settings,
) -> None:
    settings.runtime_dir.mkdir(mode=0o777)
    settings.runtime_dir.chmod(0o777)
    async with AsyncRunner("default", settings=settings, engine=Local()) as runner:
        with pytest.raises(ConfigurationError, match="not this user's alone"):
            await runner.open_session()
        assert runner.sessions() == []


class Unstartable(FakeEngine):
    """Refuses to start a container, and to remove it as often as it is told to."""

    def __init__(self, refusals: int):
        super().__init__()
        self.refusals = refusals
        self.streams: list[Carrier] = []

    async def attach(self, container: str) -> Carrier:
        """See `Engine`."""
        self.streams.append(await super().attach(container))
        return self.streams[-1]

    async def start(self, container: str) -> None:
        """See `Engine`."""
        raise EngineError("a mount was refused")

    async def remove(self, container: str) -> None:
        """See `Engine`."""
        if self.refusals:
            self.refusals -= 1
            raise EngineError("and it can't be removed")
        await super().remove(container)


class Slow(FakeEngine):
    """Starts containers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.starting = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def start(self, container: str) -> None:
        """See `Engine`."""
        self.starting.set()
        await self.go.wait()
        await super().start(container)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_session_that_is_closed_while_it_is_rebuilt_leaves_nothing(
    settings: Settings, kept: bool
) -> None:
    engine = Slow()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        session = await runner.open_session(kept=kept)
        assert session.info.container_id is not None
        sandbox = await session.sandbox()
        await engine.kill(session.info.container_id)
        async with asyncio.timeout(10):
            while sandbox.lost is None:
                await asyncio.sleep(0.01)
        engine.go.clear()
        engine.starting.clear()
        calling = asyncio.create_task(session.bash("echo hi"))
        await engine.starting.wait()
        close = runner.close_session(session.id) if kept else session.close()
        closing = asyncio.create_task(close)
        await asyncio.sleep(0.01)
        engine.go.set()
        await closing
        with pytest.raises(SessionEnded):
            await calling
        assert await engine.containers({}) == []
        assert runner.sessions() == []


@pytest.mark.parametrize("refusals", [0, 1, 2])
async def test_a_container_that_does_not_start_is_removed_and_the_error_says_why(
    settings: Settings, refusals: int
) -> None:
    engine = Unstartable(refusals)
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        with pytest.raises(EngineError, match="a mount was refused"):
            await runner.open_session()
        (stream,) = engine.streams
        ends: list[object] = []
        stream.start(lambda data: None, ends.append)
        assert ends, "its stream was closed"
        if refusals == 2:  # neither at once nor with the session: the next sweep's turn
            await runner.prune()
        assert runner.sessions() == []
        assert await engine.containers({}) == []


# Trouble on the disk.


async def test_a_workspace_that_is_gone_is_told_and_the_call_is_recorded(
    settings: Settings, tmp_path: Path
) -> None:
    workspace = tmp_path / "mine"
    workspace.mkdir()
    engine = FakeEngine()
    async with (
        AsyncRunner("default", settings=settings, engine=engine) as runner,
        runner.session(workspace=workspace) as session,
    ):
        sandbox = await session.sandbox()
        assert session.info.container_id is not None
        await engine.kill(session.info.container_id)
        async with asyncio.timeout(10):
            while sandbox.lost is None:
                await asyncio.sleep(0.01)
        shutil.rmtree(workspace)
        with pytest.raises(WorkspaceError, match="mine"):
            await session.call("bash", {"command": "echo hi"}, call_id="c-1")
        record = runner.controller.store.call("c-1")
        assert record is not None
        assert record.status is Status.LOST
        workspace.mkdir()
        assert (await session.bash("echo hi")).output == "hi\n"


async def test_a_workspace_that_can_not_be_removed_keeps_nothing_else_from_being_swept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        stuck, other = [await runner.open_session() for _ in range(2)]
        orphan = settings.data_dir / "workspaces/s-orphan"
        orphan.mkdir()
        for session in (stuck, other):  # as if their process had died
            session._lease.let_go()
            session._lease._lock.release()

        async def stubborn(path: Path) -> None:
            if path.name in (stuck.id, orphan.name):
                raise WorkspaceError(f"can't remove {path}")
            await remove_tree(path)

        monkeypatch.setattr("runner.sessions.remove_tree", stubborn)
        swept = await runner.prune()
        assert swept.sessions == (other.id,)
        assert [info.id for info in runner.sessions()] == [stuck.id]
        assert caplog.text.count("sweep.failed") == 2
        monkeypatch.undo()
        swept = await runner.prune()
        assert (swept.sessions, swept.workspaces) == ((stuck.id,), 1)
    assert not list((settings.data_dir / "workspaces").iterdir())
    assert not list((settings.data_dir / "leases").iterdir())


async def test_records_that_can_not_be_written_open_no_session(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:

        def full(*arguments: object, **options: object) -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr(runner.controller.store, "add_session", full)
        with pytest.raises(StoreError, match="full"):
            await runner.open_session()
        assert await engine.containers({}) == []
    assert not list((settings.data_dir / "leases").iterdir())


async def test_a_take_over_that_can_not_be_recorded_lets_the_session_go(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        session = await runner.open_session(kept=True)
        await session.close()
        update_session = runner.controller.store.update_session

        def full(session_id: str, *, event: AuditEvent | None = None, **changes: object) -> None:
            if event is AuditEvent.SESSION_ADOPTED:
                raise StoreError("the disk is full")

        monkeypatch.setattr(runner.controller.store, "update_session", full)
        with pytest.raises(StoreError, match="full"):
            await runner.attach(session.id)
        monkeypatch.setattr(runner.controller.store, "update_session", update_session)
        again = await runner.attach(session.id)
        assert (await again.bash("echo hi")).output == "hi\n"
        await runner.close_session(session.id)


# An engine that goes away as sessions end.


class Fickle(FakeEngine):
    """Can't be reached while it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def containers(self, labels: object) -> list[ContainerInfo]:
        """See `Engine`."""
        if self.away:
            raise EngineUnavailable("gone")
        return await super().containers(labels)  # type: ignore[arg-type]


async def test_a_runner_closes_all_it_can_while_the_engine_is_away(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Fickle()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        for _ in range(2):
            await runner.open_session()
        engine.away = True
    assert caplog.text.count("session.close.failed") == 2
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        assert "sweep.failed" in caplog.text  # told, and no reason not to start
        assert len(runner.sessions()) == 2
        engine.away = False
        assert len((await runner.prune()).sessions) == 2
    assert await engine.containers({}) == []


async def test_a_session_that_expires_while_the_engine_is_away_is_swept_later(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Fickle()
    async with AsyncRunner("default", settings=settings, engine=engine) as runner:
        session = await runner.open_session(ttl_s=0.1)
        engine.away = True
        async with asyncio.timeout(10):
            while "session.close.failed" not in caplog.text:
                await asyncio.sleep(0.02)
        engine.away = False
        assert (await runner.prune()).sessions == (session.id,)
        assert await engine.containers({}) == []


# Locks.


def test_a_lock_is_held_once_and_free_again_after_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    one, two = Lock(path), Lock(path)
    assert one.acquire()
    assert not two.acquire()
    one.release()
    assert two.acquire()
    two.release(remove=True)
    assert not path.exists()
    two.release()


def test_a_lock_whose_file_was_removed_by_its_holder_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    holder, waiting = Lock(path), Lock(path)
    assert holder.acquire()
    opened: list[int] = []
    really_open = os.open

    def open_late(*arguments: object, **options: object) -> int:
        descriptor = really_open(*arguments, **options)  # type: ignore[arg-type]
        if not opened:  # the holder lets go, with the file, just after it was opened
            opened.append(descriptor)
            holder.release(remove=True)
        return descriptor

    monkeypatch.setattr(os, "open", open_late)
    assert waiting.acquire()
    monkeypatch.undo()
    assert path.exists()
    assert not Lock(path).acquire()
    waiting.release()


async def test_an_id_is_taken_by_one_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncRunner("default", settings=settings, engine=FakeEngine()) as runner:
        first = await runner.open_session()
        taken = first.id.removeprefix("s-")
        monkeypatch.setattr("runner.sessions.secrets.token_hex", lambda count: taken)
        with pytest.raises(SessionBusy):
            await runner.open_session()
