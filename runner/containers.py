"""A session's container: making it, reaching its helper, asking what became of it, removing it.

Owns what a container looks like (`_spec`) and which of the two carriers leads into it. Whose
session it is, who holds it and for how long is `sessions`' matter.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from runner.carrier import Carrier, Listener
from runner.engine import ContainerInfo, ContainerSpec, Engine, Mount
from runner.errors import (
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    ImageUnusable,
    SandboxLost,
    SandboxOutOfMemory,
    SandboxPaused,
    WorkspaceError,
)
from runner.images import ensure_toolbox
from runner.logs import log
from runner.model import SessionInfo
from runner.sandbox import WORKSPACE, Sandbox
from runner.settings import Limits, Network

TOOLBOX = "/.runner"
STREAM_DIR = "/.runner-io"
HOME = "/home/sandbox"
GREETING_S = 15.0
"""From the start of a container to its helper's greeting."""
SOCKET_TRIAL_S = 4.0
"""How long a running container may take to dial before attach is tried instead."""
PROXY_PORT = 3128
"""Where a session's programs find the proxy, on their own loopback, if it has a network."""
DIAGNOSIS_S = 1.0
"""How long the daemon may take to say what became of a container."""

LABEL = "rousseau-runner."
USERS_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""Of a session whose calls may run as any user: what it takes to make users, give them their
files and become them, and for the helper to end what they started."""


class Containers:
    """The containers of one data directory's sessions.

    Args:
        engine: Where they are.
        owner: Marks them, so that those of others are never touched.
        runtime_dir: Where sockets are made, a directory for each session.
        on_line: Gets the progress of building the toolbox, where that is needed.
    """

    def __init__(
        self, engine: Engine, *, owner: str, runtime_dir: Path, on_line: Callable[[str], None]
    ):
        self._engine = engine
        self._owner = owner
        self._runtime_dir = runtime_dir
        self._on_line = on_line
        self._kills: set[asyncio.Task[None]] = set()
        """Lost containers that are being killed."""

    async def close(self) -> None:
        """Wait until what was lost is dead."""
        await asyncio.gather(*self._kills)

    # Ways in.

    async def start(self, info: SessionInfo) -> tuple[str, Sandbox]:
        """Make a container for a session; its id, and the sandbox in it.

        Raises:
            WorkspaceError: The workspace is gone.
            ImageUnusable: The image is gone, or has no /bin/sh.
            EngineUnavailable, EngineError: From the daemon.
            SandboxLost: The container ended at once, or its helper does not answer.
        """
        carrier_kind = await self._carrier_kind(info)
        try:
            return await self._start(info, carrier_kind)
        except SandboxLost as error:
            if info.options["carrier"] != "auto" or carrier_kind == "attach":
                raise
            # Attach needs less of the daemon, and shows what the container said as it ended.
            log.info("session.carrier", session=info.id, carrier="attach", why=str(error))
            return await self._start(info, "attach")

    async def reach(self, info: SessionInfo) -> Sandbox | None:
        """The sandbox in a session's running container; None where it can't be used any more.

        Raises:
            EngineUnavailable, EngineError: From the daemon.
        """
        if info.container_id is None:
            return None
        state = await self._engine.container(info.container_id)
        if state is None or not state.running:
            return None
        try:
            return await self._reattach(info, state)
        except SandboxLost as error:
            log.warning("session.lost", session=info.id, error=str(error))
            return None

    async def _carrier_kind(self, info: SessionInfo) -> str:
        wanted: str = info.options["carrier"]
        if wanted != "auto":
            return wanted
        version = await self._engine.version()
        runtime = info.runtime or version.default_runtime
        # gVisor shows a socket file of the host but does not let its container connect to it.
        return "socket" if version.local and "runsc" not in runtime else "attach"

    async def _start(self, info: SessionInfo, carrier_kind: str) -> tuple[str, Sandbox]:
        listener: Listener | None = None
        container_id: str | None = None
        carrier: Carrier | None = None
        try:
            spec = await self._spec(info, carrier_kind)
            if carrier_kind == "socket":
                listener = Listener(self._stream_dir(info.id))
                listener.open()
            creating = asyncio.ensure_future(self._engine.create(spec))
            try:
                container_id = await asyncio.shield(creating)
            except asyncio.CancelledError:
                container_id = await creating  # the daemon goes on with it: it is to be removed
                raise
            if listener is None:
                carrier = await self._engine.attach(container_id)
            await self._engine.start(container_id)
            if carrier is None:
                assert listener is not None
                carrier = await self._accept(listener, container_id)
            sandbox = await self._greet(info, container_id, carrier)
            if sandbox.facts is not None and not sandbox.facts.shell:
                sandbox.close()
                raise ImageUnusable(
                    f"the image {info.image} has no /bin/sh that may be run: a session needs one"
                )
        except BaseException:
            if carrier is not None:
                carrier.close()
            if container_id is not None:
                await asyncio.shield(self._discard(container_id))
            raise
        finally:
            if listener is not None:
                listener.close()
        return container_id, sandbox

    async def _reattach(self, info: SessionInfo, state: ContainerInfo) -> Sandbox:
        if state.labels[LABEL + "carrier"] == "attach":
            return await self._greet(info, state.id, await self._engine.attach(state.id))
        listener = Listener(self._stream_dir(info.id))
        listener.open()
        try:
            carrier = await self._accept(listener, state.id)
        finally:
            listener.close()
        return await self._greet(info, state.id, carrier)

    async def _greet(self, info: SessionInfo, container_id: str, carrier: Carrier) -> Sandbox:
        return await Sandbox.open(
            carrier,
            bytes.fromhex(info.marker),
            diagnose=lambda: self._diagnose(container_id),
            expires_s=max(1.0, info.expires_at - time.time()),
            idle_s=info.idle_timeout_s,
            timeout_s=GREETING_S,
            on_lost=lambda error: self._throw_away(info.id, container_id, error),
        )

    def _throw_away(self, session_id: str, container_id: str, error: SandboxLost) -> None:
        """Kill a lost container at once, so that nothing of it runs on."""
        log.warning("session.lost", session=session_id, error=str(error))
        task = asyncio.get_running_loop().create_task(self._kill(container_id))
        self._kills.add(task)
        task.add_done_callback(self._kills.discard)

    async def _discard(self, container_id: str) -> None:
        """Remove a container that did not come to be; trouble with that must not hide why."""
        try:
            await self._engine.remove(container_id)
        except EngineError as error:
            log.warning("session.remove.failed", container=container_id, error=str(error))

    async def _kill(self, container_id: str) -> None:
        try:
            await self._engine.kill(container_id)
        except EngineError as error:  # the daemon may be what is gone
            log.warning("session.kill.failed", container=container_id, error=str(error))

    async def _accept(self, listener: Listener, container_id: str) -> Carrier:
        state = await self._engine.container(container_id)
        if state is None or not state.pid:
            raise await self._diagnose(container_id) or SandboxLost("the container ended at once")
        accepting = asyncio.ensure_future(listener.accept(state.pid))
        try:
            give_up = time.monotonic() + SOCKET_TRIAL_S
            while time.monotonic() < give_up:
                await asyncio.wait([accepting], timeout=0.5)
                if accepting.done():
                    return accepting.result()
                if error := await self._diagnose(container_id):
                    raise error
        finally:
            accepting.cancel()
        raise SandboxLost(
            'the container runs, but its helper does not reach our socket; try `carrier = "attach"`'
        )

    async def _diagnose(self, container_id: str) -> SandboxLost | None:
        """What the daemon knows of a container that has gone silent; None if nothing bad.

        Raises:
            EngineUnavailable, EngineError: It knows nothing, for it does not answer.
        """
        try:
            async with asyncio.timeout(DIAGNOSIS_S):
                state = await self._engine.container(container_id)
        except TimeoutError as error:
            raise EngineUnavailable(
                f"the Docker daemon did not answer within {DIAGNOSIS_S:g} s"
            ) from error
        if state is None:
            return SandboxLost("the session's container was removed")
        if state.state == "paused":
            return SandboxPaused("the session's container was paused")
        if state.running:
            return None
        if state.oom_killed and state.exit_code == 137:  # it may be long since a call was killed
            return SandboxOutOfMemory("the session's container ran out of memory")
        return SandboxLost(f"the session's container ended ({state.state}, {state.exit_code})")

    async def _spec(self, info: SessionInfo, carrier_kind: str) -> ContainerSpec:
        limits = Limits.model_validate(info.options["limits"])
        try:
            owner = os.stat(info.workspace)
        except OSError as error:
            raise WorkspaceError(f"workspace {info.workspace!r}: {error}") from error
        if owner.st_uid == 0:
            log.warning(
                "workspace.root",
                session=info.id,
                workspace=info.workspace,
                note="it belongs to root, so calls run as uid 0, without any capability",
            )
        execute = "noexec" if info.options["tmp_noexec"] else "exec"
        common = f"rw,nosuid,nodev,{execute}"
        mounts = [
            Mount("volume", await ensure_toolbox(self._engine, self._on_line), TOOLBOX),
            Mount(
                "bind",
                info.workspace,
                WORKSPACE,
                read_only=info.read_only,
                selinux=info.options["selinux"],
            ),
        ]
        arguments: tuple[str, ...] = ("--stdio",)
        if carrier_kind == "socket":
            mounts.append(Mount("bind", str(self._stream_dir(info.id)), STREAM_DIR))
            arguments = ("--socket", f"{STREAM_DIR}/{Listener.NAME}")
        user = f"{owner.st_uid}:{owner.st_gid}"
        users = bool(info.options.get("users"))  # sessions of earlier versions have none
        if users:
            arguments = (f"--users={user}", *arguments)
        image = await self._engine.image(info.image)
        if image is None:
            raise ImageUnusable(f"the session's image {info.image} is no longer in the daemon")
        # Docker compares paths by their letters; what is mounted there anyway it would refuse.
        volumes = {os.path.normpath(path) for path in image.volumes}
        volumes -= {mount.target for mount in mounts}
        tmpfs = dict.fromkeys(sorted(volumes), f"{common},size={limits.tmp_bytes}")
        for directory in ("/tmp", "/var/tmp"):  # noqa: S108
            tmpfs[directory] = f"{common},size={limits.tmp_bytes},mode=1777"
        tmpfs[HOME] = (
            f"{common},size={limits.home_bytes},mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        )
        return ContainerSpec(
            image=info.image,
            command=(f"{TOOLBOX}/bin/supervisor", "init", *arguments),
            name=f"rousseau-runner-{info.id}",
            user="0:0" if users else user,
            capabilities=USERS_CAPABILITIES if users else (),
            writable=users,
            environment={"HOME": HOME, **_proxy(info), **info.options["environment"]},
            labels={
                LABEL + "kind": "session",
                LABEL + "session": info.id,
                LABEL + "owner": self._owner,
                LABEL + "tenant": info.tenant,
                LABEL + "expires": str(int(info.expires_at)),
                LABEL + "carrier": carrier_kind,
            },
            mounts=tuple(mounts),
            tmpfs=tmpfs,
            runtime=info.runtime,
            memory_bytes=limits.memory_bytes,
            cpus=limits.cpus,
            pids=limits.pids,
            nofile=limits.nofile,
            file_size_bytes=limits.file_size_bytes,
        )

    def _stream_dir(self, session_id: str) -> Path:
        root = self._runtime_dir
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = root.stat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
            raise ConfigurationError(
                f"{root} is not this user's alone: remove it, or set RUNNER_RUNTIME_DIR"
            )
        directory = root / session_id
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)  # the container's user has to pass through
        return directory

    # Ways out.

    async def remove(self, info: SessionInfo) -> int:
        """Remove a session's containers and its socket's directory; how many containers."""
        labels = {LABEL + "session": info.id, LABEL + "owner": self._owner}
        found = await self._engine.containers(labels)
        for container in found:
            await self._engine.remove(container.id)
        shutil.rmtree(self._runtime_dir / info.id, ignore_errors=True)
        return len(found)

    async def remove_strangers(self, known: Callable[[], set[str]]) -> int:
        """Remove our containers whose session is not known; how many.

        Args:
            known: Asked once they are listed: a session that is being opened meanwhile is in
                the store before its container exists.
        """
        labels = {LABEL + "kind": "session", LABEL + "owner": self._owner}
        found = await self._engine.containers(labels)
        sessions = known()
        strangers = [one for one in found if one.labels.get(LABEL + "session") not in sessions]
        for container in strangers:
            await self._engine.remove(container.id)
        return len(strangers)


def network_of(info: SessionInfo) -> Network:
    """What the session's programs reach. Records of older versions don't say: nothing."""
    network: Network = info.options.get("network", "none")
    return network


def _proxy(info: SessionInfo) -> dict[str, str]:
    """Variables by which programs find the proxy; they win over those of the image.

    What is in the container itself is reached without it. The proxy speaks SOCKS too, but no
    variable says so: ALL_PROXY with a SOCKS address makes clients that lack a library for it
    fail at whatever they do, HTTP included.
    """
    if network_of(info) == "none":
        return {}
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    # curl takes http_proxy in lower case only; what else there is takes either.
    variables = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), proxy)
    variables["no_proxy"] = "localhost,127.0.0.1,::1"
    return variables | {name.upper(): value for name, value in variables.items()}
