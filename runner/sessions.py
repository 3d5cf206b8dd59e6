"""Sessions: opening, holding, renewing, expiring and sweeping them.

Owns the life of a session, its workspace included, and the lease that says who may use it.
Its container is `containers`' matter, what a call is the controller's.

A session is held by a lease: a lock on a file, which the kernel releases when its holder
dies. An open session that nobody holds is either kept (it waits to be adopted, until its
time runs out) or belongs to a process that died, and is swept.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from runner.answers import RequestFailed
from runner.background import Programs
from runner.containers import Containers, network_of
from runner.engine import Engine
from runner.errors import (
    RunnerError,
    SandboxError,
    SessionBusy,
    SessionEnded,
    SessionNotFound,
    WorkspaceError,
)
from runner.helper.wire import MARKER_BYTES
from runner.images import ensure_image
from runner.lock import Lock, lock_is_held
from runner.logs import log
from runner.model import SessionInfo, SessionState
from runner.sandbox import Sandbox
from runner.settings import Limits, Network, Settings
from runner.store import AuditEvent, Store
from runner.workspace import check_workspace, make_workspace, remove_tree

LEASE_POLL_S = 0.05
KEEP_ALIVE_S = 30.0
"""How often the helper of an idle session hears from us at least: it ends when nobody does."""
LEASES = "leases"
"""Where the locks are, in the data directory."""

OnLine = Callable[[str], None]


def _quiet(line: str) -> None:
    log.info("image.progress", line=line)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session is opened with."""

    image: str
    workspace: Path | None = None
    """A directory of the user's; None: the runner makes one, and removes it with the session."""
    read_only: bool = False
    runtime: str | None = None
    carrier: str = "auto"
    timeout_s: float = 60.0
    idle_timeout_s: float = 1800.0
    ttl_s: float = 8 * 3600.0
    kept: bool = False
    """It outlives the process that opens it."""
    tenant: str = ""
    title: str = ""
    """What its opener calls it, for people."""
    network: Network = "none"
    """What its programs reach through the runner's proxy."""
    users: bool = False
    """Its calls may run as any user of the image, root included; see `containers`."""
    limits: Limits = field(default_factory=Limits)
    tmp_noexec: bool = False
    selinux: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for every call."""

    def stored(self) -> dict[str, Any]:
        """What the store keeps of it, for another process to make a container by."""
        return {
            "carrier": self.carrier,
            "timeout_s": self.timeout_s,
            "limits": self.limits.model_dump(),
            "tmp_noexec": self.tmp_noexec,
            "selinux": self.selinux,
            "environment": dict(self.environment),
            "network": self.network,
            "users": self.users,
        }


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed."""

    sessions: tuple[str, ...] = ()
    """Sessions that were ended: expired, or their process died."""
    containers: int = 0
    workspaces: int = 0
    lost_calls: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    """Images and toolboxes of other versions."""


def is_held(settings: Settings, session_id: str) -> bool:
    """Whether some process holds the session at this moment, for people to look at."""
    return lock_is_held(settings.data_dir / LEASES / session_id)


class Lease:
    """A session that is ours to use. Get one from `Sessions`; `release` when done."""

    def __init__(self, sessions: "Sessions", info: SessionInfo, lock: Lock):
        self.info = info
        self.busy = 0
        """Calls under way."""
        self._sessions = sessions
        self._lock = lock
        self.added_environment: dict[str, str] = {}
        """Variables that whoever attaches to its sandboxes adds; see `OnSandbox`."""
        self.programs = Programs()
        """What goes on between calls of this lease; it ends with it."""
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()
        self._released = False

    @property
    def timeout_s(self) -> float:
        """The session's own time limit of a call."""
        return float(self.info.options["timeout_s"])

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that every call of the session gets; what it was opened with comes first."""
        return {**self.added_environment, **self.info.options["environment"]}

    async def sandbox(self) -> Sandbox:
        """The session's sandbox: the one at hand, or a new one where that was lost.

        Raises:
            SessionEnded: Its time ran out, or it was released.
            EngineError, SandboxLost: A new container could not be started.
        """
        sandbox = self._sandbox
        if sandbox is not None and sandbox.lost is None and not self._over():
            return sandbox
        async with self._opening:
            if self._over():
                raise SessionEnded(f"session {self.info.id} is over: open a new one")
            if self._sandbox is None or self._sandbox.lost is not None:
                rebuilt = self._sandbox is not None
                self._sandbox = await self._sessions.connect(self, fresh=rebuilt)
                if self._over():
                    raise SessionEnded(f"session {self.info.id} is over: open a new one")
            return self._sandbox

    def _over(self) -> bool:
        return self._released or time.time() >= self.info.expires_at

    def keep_alive(self) -> None:
        """Let the helper know that somebody is there, though nothing is asked."""
        if self._sandbox is not None:
            self._sandbox.keep_alive()

    async def release(self) -> None:
        """Let go of the session: a kept one goes on without us, any other is closed."""
        if self.info.kept:
            if self.let_go():
                async with self._opening:
                    self._hang_up()
                self._lock.release()
        else:
            await self.close()

    async def close(self, state: SessionState = SessionState.CLOSED, *, reason: str = "") -> None:
        """End the session for good, kept or not.

        Raises:
            EngineError, WorkspaceError: Something of it could not be removed. A later sweep
                tries again.
        """
        if self.let_go():
            async with self._opening:  # a container that is just being started ends, too
                self._hang_up()
                await self._sessions.end(self.info, state, self._lock, reason=reason)

    def let_go(self) -> bool:
        """Hang up, and leave the rest to the caller; False where that was done before."""
        if self._released:
            return False
        self._released = True
        self._hang_up()
        self._sessions.forget(self)
        return True

    def _hang_up(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.release()


OnSandbox = Callable[[Lease, Sandbox], Awaitable[None]]
"""Attaches to a sandbox before anybody uses it."""


class Sessions:
    """All sessions of one data directory, and the leases of this process.

    Args:
        engine: Where their containers are.
        store: Where their records are.
        settings: The settings.
        on_line: Gets the progress of image builds.
        on_sandbox: Awaited with every sandbox of a session that has a network, be it of a new
            container, a rebuilt or an adopted one: whoever serves the network listens there.
            None: nobody does, and the session's programs reach nothing.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        settings: Settings,
        *,
        on_line: OnLine = _quiet,
        on_sandbox: OnSandbox | None = None,
    ):
        self.engine = engine
        self._store = store
        self._settings = settings
        self._on_line = on_line
        self._on_sandbox = on_sandbox
        self._leases: set[Lease] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._leased = asyncio.Event()
        """Tells the reaper of a session that it has not seen."""
        self._workspaces = settings.data_dir / "workspaces"
        self._locks = settings.data_dir / LEASES
        self._containers = Containers(
            engine,
            owner=hashlib.sha256(os.fsencode(settings.data_dir)).hexdigest()[:16],
            runtime_dir=settings.runtime_dir,
            on_line=on_line,
        )

    async def close(self) -> None:
        """Release every lease."""
        if self._reaper is not None:
            self._reaper.cancel()
        for lease in list(self._leases):
            try:
                await lease.release()
            except RunnerError as error:
                # The next start sweeps what is left; the other leases must go all the same.
                log.error("session.close.failed", session=lease.info.id, error=str(error))
        await self._containers.close()

    def forget(self, lease: Lease) -> None:
        """Called by a lease that is being released."""
        self._leases.discard(lease)

    # Opening.

    async def open(self, options: SessionOptions) -> Lease:
        """Open a session and start its container.

        Raises:
            WorkspaceError: The directory can't be mounted.
            ImageUnusable: The image is missing, for another architecture, or has no /bin/sh.
            EngineUnavailable, EngineError: Docker can't be reached, or refused.
            SandboxLost: The container ended before it could be used.
        """
        workspace = None if options.workspace is None else check_workspace(options.workspace)
        image = await self._image(options.image)
        session_id = f"s-{secrets.token_hex(6)}"
        for directory in (self._workspaces, self._locks):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = Lock(self._locks / session_id)
        if not lock.acquire():
            raise SessionBusy(f"session {session_id} is taken")
        now = time.time()
        info = SessionInfo(
            id=session_id,
            state=SessionState.OPEN,
            image=image,
            runtime=options.runtime,
            workspace=str(workspace or self._workspaces / session_id),
            managed=workspace is None,
            read_only=options.read_only,
            kept=options.kept,
            container_id=None,
            created_at=now,
            used_at=now,
            idle_timeout_s=options.idle_timeout_s,
            expires_at=now + options.ttl_s,
            tenant=options.tenant,
            title=options.title,
            options=options.stored(),
            marker=secrets.token_hex(MARKER_BYTES),
        )
        try:
            self._store.add_session(info)
        except BaseException:
            lock.release(remove=True)
            raise
        lease = Lease(self, info, lock)
        try:
            if info.managed:
                make_workspace(Path(info.workspace))
            await lease.sandbox()
        except BaseException:
            lease.let_go()
            try:
                await asyncio.shield(self.end(lease.info, SessionState.CLOSED, lock))
            except RunnerError as error:
                log.error("session.close.failed", session=session_id, error=str(error))
            raise
        self._watch_over(lease)
        return lease

    async def adopt(self, session_id: str, *, wait_s: float = 0.0) -> Lease:
        """Take over an open session that another process opened.

        Args:
            wait_s: How long to wait for its present holder to let go.

        Raises:
            SessionNotFound: There is no such session.
            SessionEnded: It was closed, or its time ran out.
            SessionBusy: Somebody else holds it, still so after `wait_s`.
            EngineUnavailable, EngineError, SandboxLost: As for `open`.
        """
        lock = await self._take(session_id, wait_s)
        try:
            info = self._find(session_id)
            if reason := _expired(info):
                await self.end(info, SessionState.EXPIRED, lock, reason=reason)
                raise SessionEnded(f"session {session_id} is over: {reason}")
            lease = Lease(self, info, lock)
            try:
                await lease.sandbox()
                self._store.update_session(
                    session_id, used_at=time.time(), event=AuditEvent.SESSION_ADOPTED
                )
            except BaseException:
                lease.let_go()
                raise
        except SessionEnded:
            lock.release(remove=True)
            raise
        except BaseException:
            lock.release()
            raise
        self._watch_over(lease)
        return lease

    async def _take(self, session_id: str, wait_s: float) -> Lock:
        self._find(session_id)
        lock = Lock(self._locks / session_id)
        give_up = time.monotonic() + wait_s
        while not lock.acquire():
            if time.monotonic() >= give_up:
                raise SessionBusy(
                    f"session {session_id} is held by another process;"
                    " wait for it, or let it finish"
                )
            await asyncio.sleep(LEASE_POLL_S)
        return lock

    def _find(self, session_id: str) -> SessionInfo:
        info = self._store.session(session_id)
        if info is None:
            raise SessionNotFound(f"there is no session {session_id!r}")
        if info.state is not SessionState.OPEN:
            raise SessionEnded(f"session {session_id} is {info.state}")
        return info

    async def finish(self, session_id: str, *, wait_s: float = 0.0) -> None:
        """Close an open session by its id.

        Raises:
            SessionNotFound, SessionEnded, SessionBusy: As for `adopt`.
        """
        for lease in self._leases:
            if lease.info.id == session_id:
                await lease.close()
                return
        lock = await self._take(session_id, wait_s)
        try:
            info = self._find(session_id)  # its holder may have closed it
        except SessionEnded:
            lock.release(remove=True)
            raise
        await self.end(info, SessionState.CLOSED, lock)

    async def _image(self, ref: str) -> str:
        return (await ensure_image(self.engine, ref, self._on_line)).id

    async def connect(self, lease: Lease, *, fresh: bool) -> Sandbox:
        """A sandbox for the lease: on its running container, else on a new one.

        Raises:
            SandboxError: Nobody can listen there for the connections of its programs.
        """
        sandbox = await self._connect(lease, fresh=fresh)
        if self._on_sandbox is not None and network_of(lease.info) != "none":
            try:
                await self._on_sandbox(lease, sandbox)
            except RequestFailed as error:
                sandbox.close()
                raise SandboxError(f"the session's network can't be set up: {error}") from error
            except BaseException:
                sandbox.close()
                raise
        return sandbox

    async def _connect(self, lease: Lease, *, fresh: bool) -> Sandbox:
        info = lease.info
        if not fresh and (sandbox := await self._containers.reach(info)) is not None:
            return sandbox
        rebuilt = info.container_id is not None
        if info.container_id is not None:
            await self.engine.remove(info.container_id)
        container_id, sandbox = await self._containers.start(info)
        lease.info = replace(info, container_id=container_id)
        self._store.update_session(
            info.id,
            container_id=container_id,
            event=AuditEvent.SESSION_REBUILT if rebuilt else None,
            body={"container": container_id},
        )
        return sandbox

    # Ending.

    async def end(
        self, info: SessionInfo, state: SessionState, lock: Lock, *, reason: str = ""
    ) -> int:
        """End a session whose lock is held: container, sockets, managed workspace, record.

        Returns:
            How many containers there were.

        Raises:
            EngineError, WorkspaceError: Something could not be removed. The session stays
                open, held by nobody, for a sweep to try again.
        """
        try:
            containers = await self._containers.remove(info)
            if info.managed:
                await remove_tree(Path(info.workspace))
            self._store.end_session(info.id, state, reason=reason)
        except BaseException:
            lock.release()  # it is still open, and whoever sweeps next may try again
            raise
        lock.release(remove=True)
        return containers

    async def sweep(self) -> Swept:
        """End what nobody can use any more: expired sessions, and those of dead processes.

        Raises:
            EngineUnavailable, EngineError: Docker can't be reached, or refused.
        """
        ended: list[str] = []
        containers = 0
        for seen in self._store.sessions():
            if seen.kept and _expired(seen) is None:
                continue
            lock = self._free_lock(seen.id)
            if lock is None:
                continue
            info = self._store.session(seen.id) or seen
            if info.state is not SessionState.OPEN:  # somebody was faster
                lock.release(remove=True)
                continue
            reason = _expired(info)
            if info.kept and reason is None:
                lock.release()
                continue
            why = reason or "its process ended"
            try:
                state = SessionState.EXPIRED if reason else SessionState.CLOSED
                containers += await self.end(info, state, lock, reason=why)
            except WorkspaceError as error:
                log.warning("sweep.failed", session=info.id, error=str(error))
                continue
            finally:
                lock.release()
            self._store.audit(AuditEvent.SESSION_SWEPT, session_id=info.id, body={"why": why})
            ended.append(info.id)
        containers += await self._containers.remove_strangers(
            lambda: {info.id for info in self._store.sessions()}
        )
        workspaces = await self._sweep_workspaces()
        self._sweep_locks()
        return Swept(tuple(ended), containers, workspaces)

    # What is there is listed first, and only then what belongs to somebody: a session that is
    # being opened meanwhile is in the store before anything of it exists.

    def _free_lock(self, session_id: str) -> Lock | None:
        self._locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = Lock(self._locks / session_id)
        return lock if lock.acquire() else None

    def _sweep_locks(self) -> None:
        """Remove locks of sessions that are over, or were never quite begun."""
        found = [path.name for path in self._locks.iterdir()] if self._locks.is_dir() else []
        known = {info.id for info in self._store.sessions()}
        for name in found:
            if name not in known and (lock := self._free_lock(name)) is not None:
                lock.release(remove=True)

    async def _sweep_workspaces(self) -> int:
        found = list(self._workspaces.iterdir()) if self._workspaces.is_dir() else []
        known = {info.id for info in self._store.sessions()}
        count = 0
        for path in found:
            if path.name in known:
                continue
            try:
                await remove_tree(path)
                count += 1
            except WorkspaceError as error:
                log.warning("sweep.failed", workspace=str(path), error=str(error))
        return count

    # Time.

    def _watch_over(self, lease: Lease) -> None:
        self._leases.add(lease)
        self._leased.set()
        if self._reaper is None or self._reaper.done():
            self._reaper = asyncio.get_running_loop().create_task(self._reap())

    async def _reap(self) -> None:
        """Close sessions of this process whose time has come, as long as it has any."""
        while self._leases:
            self._leased.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_expiry()):
                    await self._leased.wait()
            for lease in list(self._leases):
                reason = _expired(self._store.session(lease.info.id) or lease.info)
                if lease.busy or reason is None:
                    lease.keep_alive()
                    continue
                log.info("session.expired", session=lease.info.id, reason=reason)
                try:
                    await lease.close(SessionState.EXPIRED, reason=reason)
                except RunnerError as error:
                    log.warning("session.close.failed", session=lease.info.id, error=str(error))

    def _next_expiry(self) -> float:
        """Seconds until a session of ours may be over, or its helper has to hear from us."""
        now = time.time()
        waits = [KEEP_ALIVE_S]
        for lease in self._leases:
            stored = self._store.session(lease.info.id) or lease.info
            waits.append(stored.idle_timeout_s / 3)
            waits.append(min(stored.expires_at, stored.used_at + stored.idle_timeout_s) - now)
        return max(0.05, min(waits))


def _expired(info: SessionInfo) -> str | None:
    now = time.time()
    if now >= info.expires_at:
        return "its time ran out"
    if now >= info.used_at + info.idle_timeout_s:
        return f"it was not used for {info.idle_timeout_s:g} s"
    return None
