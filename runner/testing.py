r"""Fakes for tests: of this project and of those who build on it.

`FakeEngine` stands in for Docker. Its containers run nothing: a small helper in memory
speaks the real protocol over a real `Sandbox`, reads and writes the real workspace
directory, and answers commands from a `FakeShell`. It passes the same contract suite as the
real engine.

    with Runner("default", engine=FakeEngine()) as runner, runner.session() as session:
        assert session.bash("echo hi").text == "hi\\n"
"""

import asyncio
import itertools
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.carrier import Carrier, OnData, OnEnd
from runner.engine import ContainerInfo, ContainerSpec, EngineVersion, ImageInfo, VolumeInfo
from runner.errors import Conflict, NotFound
from runner.helper import files, search, watch, wire
from runner.helper.requests import REQUESTS, Answer, list_entries, search_files
from runner.helper.wire import Kind
from runner.images import DEFAULT_IMAGE, LABEL_HASH, recipe
from runner.sandbox import WORKSPACE


@dataclass(frozen=True, slots=True)
class FakeRun:
    """How a command of a `FakeShell` goes."""

    output: bytes = b""
    exit_code: int = 0
    takes_s: float = 0.0
    """How long it runs after its output."""
    errors: bytes = b""
    """Its standard error, behind its output where the two are one."""
    reads: bool = False
    """It writes what it reads, and ends with its input."""


def fake_shell(line: str) -> FakeRun:
    """Knows `echo WORDS`, `exit N`, `sleep SECONDS` and `cat`, one after another with `;`.

    `cat` reads only what is written to a program that was started.
    """
    output, exit_code, takes_s, reads = b"", 0, 0.0, False
    for command in line.split(";"):
        match command.split():
            case ["echo", *words]:
                output += " ".join(words).encode() + b"\n"
            case ["sleep", seconds]:
                takes_s += float(seconds)
            case ["cat"]:
                reads = True
            case ["exit", code]:
                exit_code = int(code)
                break
            case []:
                continue
            case [program, *_]:
                output += f"/bin/sh: {program}: not found\n".encode()
                exit_code = 127
    return FakeRun(output, exit_code, takes_s, reads=reads)


FakeShell = Callable[[str], FakeRun]


class MemoryCarrier:
    """One end of a stream in memory; made in pairs by `memory_carriers`."""

    def __init__(self) -> None:
        self.peer: MemoryCarrier | None = None
        self._on_data: OnData | None = None
        self._on_end: OnEnd | None = None
        self._early: list[bytes] = []
        self._ended = False

    def start(self, on_data: OnData, on_end: OnEnd) -> None:
        """See `Carrier`."""
        self._on_data, self._on_end = on_data, on_end
        for data in self._early:
            on_data(data)
        self._early.clear()
        if self._ended:
            on_end(None)

    def send(self, data: bytes) -> None:
        """See `Carrier`."""
        if self.peer is not None and not self._ended:
            asyncio.get_running_loop().call_soon(self.peer._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self._ended:
            return
        if self._on_data is None:
            self._early.append(data)
        else:
            self._on_data(data)

    async def drain(self) -> None:
        """See `Carrier`."""
        await asyncio.sleep(0)

    def close(self) -> None:
        """See `Carrier`."""
        loop = asyncio.get_running_loop()
        for end in (self, self.peer):
            if end is not None and not end._ended:
                end._ended = True
                if end._on_end is not None:
                    loop.call_soon(end._on_end, None)

    @property
    def diagnostics(self) -> str:
        """See `Carrier`."""
        return ""


def memory_carriers() -> tuple[MemoryCarrier, MemoryCarrier]:
    """Two ends of one stream."""
    one, other = MemoryCarrier(), MemoryCarrier()
    one.peer, other.peer = other, one
    return one, other


class _Window:
    """How much output of a call the host takes before it says that it took some."""

    def __init__(self) -> None:
        self._sent = 0
        self._allowed = wire.OUTPUT_WINDOW_BYTES
        self._changed = asyncio.Event()

    def widen(self, count: int) -> None:
        self._allowed += count
        self._changed.set()

    async def room(self) -> int:
        """How many bytes may be sent at once; waits until there are some."""
        while self._sent >= self._allowed:
            self._changed.clear()
            await self._changed.wait()
        return min(self._allowed - self._sent, wire.OUTPUT_CHUNK_BYTES)

    def take(self, count: int) -> None:
        """So many were sent."""
        self._sent += count


Send = Callable[[int, int, Mapping[str, Any], bytes], None]


class _FakeProgram:
    """A program that pretends to run, from its request to its end."""

    def __init__(self, request: wire.Message, shell: FakeShell, send: Send):
        self.window = _Window()
        self.input: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What it is to read; None: the end."""
        self.signal: int | None = None
        """That ended it."""
        self._call = request.call
        self._fields = request.fields
        self._shell = shell
        self._send_frame = send
        self._sent = {Kind.OUTPUT: 0, Kind.ERRORS: 0}
        self._task: asyncio.Task[None] | None = None

    def start(self, told: Callable[[], watch.Report]) -> None:
        """Run; `told` is called before the end is told, and says what is told of files."""
        self._task = asyncio.get_running_loop().create_task(self._run(told))

    def cancel(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, told: Callable[[], watch.Report]) -> None:
        line, argv = self._fields["shell"], self._fields["argv"]
        is_shell = argv == ["/bin/sh"]
        ended = "exited"
        result = FakeRun() if is_shell else self._shell(line or " ".join(argv or ()))
        try:
            await self._write(Kind.OUTPUT, result.output)
            await self._write(Kind.ERRORS, result.errors)
            if is_shell:
                await self._be_a_shell()
            while result.reads and self._fields["input"] and (data := await self.input.get()):
                self._send_frame(Kind.TAKEN, self._call, {"bytes": len(data)}, b"")
                await self._write(Kind.OUTPUT, data)
            await asyncio.sleep(result.takes_s)
        except asyncio.CancelledError:
            ended = "cancelled" if self.signal is None else "exited"
        touched = told()
        by_itself = ended == "exited" and self.signal is None
        self._send_frame(
            Kind.RAN,
            self._call,
            {
                "exit_code": result.exit_code if by_itself else None,
                "signal": self.signal,
                "ended": ended,
                "background": 0,
                "oom_killed": False,
                "output_bytes": self._sent[Kind.OUTPUT],
                "errors_bytes": self._sent[Kind.ERRORS],
                "spill_path": None,
                "spill_bytes": 0,
                "touched": touched.touched,
                "touched_count": touched.total,
                "touched_complete": touched.complete,
            },
            b"",
        )

    async def _be_a_shell(self) -> None:
        """Do what `runner.background` writes to a shell that it keeps."""
        script = b""
        while (data := await self.input.get()) is not None:
            self._send_frame(Kind.TAKEN, self._call, {"bytes": len(data)}, b"")
            script += data
            while b"} 2>/dev/null\n" in script:
                ask, _, script = script.partition(b"} 2>/dev/null\n")
                words = shlex.split(ask.decode())
                result = self._shell(words[words.index("eval") + 1])
                await self._write(Kind.OUTPUT, result.output + result.errors)
                await asyncio.sleep(result.takes_s)
                token = words[words.index("printf") + 2]
                mark = f"\x1e{token}\x1f{result.exit_code}\x1e"
                await self._write(Kind.OUTPUT, mark.encode())

    async def _write(self, kind: int, data: bytes) -> None:
        if not self._fields["errors"]:
            kind = Kind.OUTPUT
        while data:
            size = await self.window.room()
            piece, data = data[:size], data[size:]
            self.window.take(len(piece))
            self._sent[kind] += len(piece)
            self._send_frame(kind, self._call, {}, piece)


class FakeHelper:
    """The helper's side of the protocol, in memory.

    Args:
        users: Its programs may run as root, who is the one user besides its own.
    """

    def __init__(
        self,
        carrier: Carrier,
        shell: FakeShell,
        workspace: Path,
        uid: int,
        gid: int,
        *,
        users: bool = False,
    ):
        self._carrier = carrier
        self._users = users
        self._shell = shell
        self._workspace = workspace.resolve()  # so that no link stands in what is judged
        self._facts = {
            "uid": uid,
            "gid": gid,
            "shell": True,
            "python": "fake",
            "seccomp": True,
        }
        self._decoder: wire.Decoder | None = None
        self._greeting = b""
        self._running: dict[int, _FakeProgram] = {}
        self._watch: watch.Watch | None = None
        carrier.start(self._on_data, self._on_end)

    def _on_data(self, data: bytes | memoryview) -> None:
        if self._decoder is None:
            data = self._greeting = self._greeting + bytes(data)
            marker = data[: wire.MARKER_BYTES]
            if len(marker) < wire.MARKER_BYTES:
                return
            self._decoder = wire.Decoder(marker, wire.FROM_HOST)
            self._carrier.send(marker)
        self._decoder.feed(data)
        while (message := self._decoder.next_message()) is not None:
            self._take(message)

    def _on_end(self, error: BaseException | None) -> None:
        for program in self._running.values():
            program.cancel()
        if self._watch is not None:
            self._watch.close()

    def _send(self, kind: int, call: int, fields: Mapping[str, Any], payload: bytes = b"") -> None:
        self._carrier.send(wire.encode(kind, call, dict(fields), payload))

    def _take(self, message: wire.Message) -> None:
        kind, call = message.kind, message.call
        if kind == Kind.HELLO:
            hello = {"role": "helper", "version": wire.PROTOCOL_VERSION}
            self._send(Kind.HELLO, 0, {**hello, "expires_s": None, "idle_s": None, **self._facts})
        elif kind == Kind.PING:
            self._send(Kind.PONG, call, {})
        elif kind == Kind.RUN:
            self._run(message)
        elif kind in (Kind.CANCEL, Kind.CREDIT, Kind.INPUT, Kind.SIGNAL):
            if call in self._running:
                self._tell(self._running[call], message)
        elif kind == Kind.WATCH:
            self._start_watch(message)
        elif kind == Kind.LISTEN:
            self._send(Kind.LISTENING, call, {})  # nothing in here ever connects
        else:
            self._answer(message)

    def _start_watch(self, message: wire.Message) -> None:
        root, patterns = message.fields["root"], message.fields["patterns"]
        try:
            self._watch = watch.Watch(
                self._on_host(root), patterns, before=self._watch, called=root
            )
        except files.Failure as failure:
            answer = {"code": failure.code, "detail": failure.detail}
            self._send(Kind.FAILED, message.call, answer)
            return
        found = {"directories": self._watch.directories, "complete": self._watch.complete}
        self._send(Kind.WATCHED, message.call, found)

    def _tell(self, program: _FakeProgram, message: wire.Message) -> None:
        if message.kind == Kind.CREDIT:
            program.window.widen(message.fields["bytes"])
        elif message.kind == Kind.INPUT:
            if message.payload:
                program.input.put_nowait(message.payload)
            if message.fields["end"]:
                program.input.put_nowait(None)
        else:
            program.signal = message.fields.get("signal")
            program.cancel()

    def _run(self, message: wire.Message) -> None:
        fields, call = message.fields, message.call
        user = fields["user"]
        if user not in (None, str(self._facts["uid"]), *(("root", "0") if self._users else ())):
            code = "no_user" if self._users else "permission_denied"
            self._send(Kind.FAILED, call, {"code": code, "detail": f"can't run as user {user!r}"})
            return
        program = self._running[call] = _FakeProgram(message, self._shell, self._send)

        def ended() -> watch.Report:
            del self._running[call]
            if not fields["watch"]:
                return watch.UNASKED
            return watch.UNSEEN if self._watch is None else self._watch.look()

        program.start(ended)

    def _answer(self, message: wire.Message) -> None:
        try:
            answer = self._answer_about_files(message)
        except files.Failure as failure:
            answer = (Kind.FAILED, {"code": failure.code, "detail": failure.detail}, b"")
        self._send(answer[0], message.call, answer[1], answer[2])

    def _answer_about_files(self, message: wire.Message) -> Answer:
        fields = dict(message.fields)
        fields["path"] = self._on_host(fields["path"])
        if fields.get("judged"):
            fields["judged"] = self._on_host(fields["judged"])
        message = message._replace(fields=fields)
        event = threading.Event()
        if message.kind == Kind.LIST:
            return list_entries(message, event, self._hider)
        if message.kind == Kind.SEARCH:
            kind, found, rows = search_files(message, event, self._hider)
            return kind, found, rows.replace(str(self._workspace).encode(), WORKSPACE.encode())
        kind, answer, payload = REQUESTS[message.kind](message, event)
        if kind == Kind.RESOLVED:
            answer = {"path": self._in_container(answer["path"])}
        return kind, answer, payload

    def _hider(self, patterns: Sequence[str]) -> Callable[[bytes], bool] | None:
        hides = search.hider(patterns)
        if hides is None:
            return None
        return lambda path: hides(os.fsencode(self._in_container(os.fsdecode(path))))

    def _on_host(self, path: str) -> str:
        if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
            return str(self._workspace) + path.removeprefix(WORKSPACE)
        return f"{self._workspace}/.outside{path}"

    def _in_container(self, path: str) -> str:
        workspace = str(self._workspace)
        if path == workspace or path.startswith(workspace + "/"):
            path = WORKSPACE + path.removeprefix(workspace)
        return path.removeprefix(f"{WORKSPACE}/.outside") or "/"


@dataclass(slots=True)
class _FakeContainer:
    spec: ContainerSpec
    info: ContainerInfo
    carriers: list[MemoryCarrier] = field(default_factory=list)


class FakeEngine:
    """An `Engine` without Docker: images and volumes are names, containers helpers in memory.

    Args:
        shell: What commands do; None: `fake_shell`.
    """

    def __init__(self, shell: FakeShell | None = None):
        self._shell = shell or fake_shell
        self._containers: dict[str, _FakeContainer] = {}
        self._volumes: dict[str, VolumeInfo] = {}
        self._ids = itertools.count(1)
        self._images: dict[str, ImageInfo] = {}
        for name, ref in (("sandbox", DEFAULT_IMAGE), ("toolbox", recipe("toolbox", "amd64").ref)):
            labels = {LABEL_HASH: recipe(name, "amd64").digest}
            self._images[ref] = ImageInfo(
                f"sha256:{name}", (ref,), "amd64", "linux", labels, 0, "2026-01-01T00:00:00Z"
            )

    async def version(self) -> EngineVersion:
        """See `Engine`. Not local, so that sessions attach."""
        return EngineVersion(
            server_version="fake",
            api_version="1.41",
            os="linux",
            architecture="amd64",
            kernel="fake",
            runtimes=("fake",),
            default_runtime="fake",
            security_options=(),
            cgroup_version="2",
            storage_driver="fake",
            root_dir="/",
            rootless=False,
            local=False,
        )

    def _get(self, container: str) -> _FakeContainer | None:
        for one in self._containers.values():
            if container in (one.info.id, one.info.name):
                return one
        return None

    def _find(self, container: str) -> _FakeContainer:
        one = self._get(container)
        if one is None:
            raise NotFound(f"No such container: {container}")
        return one

    async def create(self, spec: ContainerSpec) -> str:
        """See `Engine`."""
        if await self.image(spec.image) is None:
            raise NotFound(f"No such image: {spec.image}")
        number = next(self._ids)
        name = spec.name or f"fake-{number}"
        if any(name == one.info.name for one in self._containers.values()):
            raise Conflict(f"the name {name!r} is taken")
        container_id = f"{number:064x}"
        info = ContainerInfo(container_id, name, spec.image, dict(spec.labels), "created")
        self._containers[container_id] = _FakeContainer(spec, info)
        for mount in spec.mounts:
            if mount.kind == "volume":
                await self.create_volume(mount.source, {})
        return container_id

    async def start(self, container: str) -> None:
        """See `Engine`."""
        one = self._find(container)
        one.info = replace(one.info, state="running", pid=1)

    async def kill(self, container: str) -> None:
        """See `Engine`."""
        one = self._get(container)
        if one is not None and one.info.state in ("running", "paused"):
            one.info = replace(one.info, state="exited", pid=0, exit_code=137)
            for carrier in one.carriers:
                carrier.close()

    async def remove(self, container: str) -> None:
        """See `Engine`."""
        await self.kill(container)
        one = self._get(container)
        if one is not None:
            del self._containers[one.info.id]

    async def container(self, container: str) -> ContainerInfo | None:
        """See `Engine`. The toolbox's volume always counts as filled."""
        if container.startswith("rousseau-runner-toolbox-"):
            return ContainerInfo(container, container, "toolbox", {}, "created")
        one = self._get(container)
        return None if one is None else one.info

    async def containers(self, labels: Mapping[str, str]) -> list[ContainerInfo]:
        """See `Engine`."""
        return [
            one.info
            for one in self._containers.values()
            if all(
                key in one.info.labels and (not value or one.info.labels[key] == value)
                for key, value in labels.items()
            )
        ]

    async def attach(self, container: str) -> Carrier:
        """See `Engine`."""
        one = self._find(container)
        ours, theirs = memory_carriers()
        workspace = next(
            (Path(mount.source) for mount in one.spec.mounts if mount.target == WORKSPACE), Path()
        )
        users = [word for word in one.spec.command if word.startswith("--users=")]
        uid, gid = map(int, (users[0].partition("=")[2] if users else one.spec.user).split(":"))
        FakeHelper(theirs, self._shell, workspace, uid, gid, users=bool(users))
        one.carriers.append(ours)
        return ours

    async def image(self, ref: str) -> ImageInfo | None:
        """See `Engine`."""
        found = self._images.get(ref)
        if found is not None:
            return found
        return next((image for image in self._images.values() if image.id == ref), None)

    async def images(self, label: str) -> list[ImageInfo]:
        """See `Engine`."""
        key, _, value = label.partition("=")
        return [
            image
            for image in self._images.values()
            if key in image.labels and (not value or image.labels[key] == value)
        ]

    async def pull(self, ref: str) -> bool:
        """See `Engine`. There is no registry."""
        return False

    async def import_image(self, archive: Path, ref: str, labels: Mapping[str, str]) -> ImageInfo:
        """See `Engine`."""
        return self.add_image(ref, labels=labels)

    async def build(
        self,
        context: bytes,
        ref: str,
        *,
        labels: Mapping[str, str],
        arguments: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> ImageInfo:
        """See `Engine`."""
        on_line(f"building {ref}")
        return self.add_image(ref, labels=labels)

    def add_image(
        self, ref: str, *, labels: Mapping[str, str] | None = None, architecture: str = "amd64"
    ) -> ImageInfo:
        """Put an image into the daemon."""
        image = ImageInfo(f"sha256:{ref}", (ref,), architecture, "linux", dict(labels or {}), 0, "")
        self._images[ref] = image
        return image

    async def tag(self, ref: str, new_ref: str) -> None:
        """See `Engine`."""
        image = await self.image(ref)
        if image is None:
            raise NotFound(f"No such image: {ref}")
        await self.remove_image(new_ref)
        named = replace(image, tags=(*image.tags, new_ref))
        self._images |= dict.fromkeys(named.tags, named)

    async def remove_image(self, ref: str) -> None:
        """See `Engine`."""
        image = await self.image(ref)
        if image is None:
            return
        gone = {ref} if ref in image.tags else set(image.tags)
        used = any(one.spec.image in (image.id, *image.tags) for one in self._containers.values())
        if len(image.tags) == 1 and used:
            raise Conflict(f"the image {ref!r} is in use by a container")
        if ref not in image.tags and len(image.tags) > 1:
            raise Conflict(f"the image {ref!r} has several names")
        left = replace(image, tags=tuple(tag for tag in image.tags if tag not in gone))
        for tag in gone:
            del self._images[tag]
        self._images |= dict.fromkeys(left.tags, left)

    async def volume(self, name: str) -> VolumeInfo | None:
        """See `Engine`."""
        return self._volumes.get(name)

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """See `Engine`."""
        self._volumes.setdefault(name, VolumeInfo(name, dict(labels)))

    async def remove_volume(self, name: str) -> None:
        """See `Engine`."""
        for one in self._containers.values():
            if any(mount.source == name for mount in one.spec.mounts):
                raise Conflict(f"the volume {name!r} is in use by {one.info.name}")
        self._volumes.pop(name, None)

    async def volumes(self, label: str) -> list[VolumeInfo]:
        """See `Engine`."""
        key, _, value = label.partition("=")
        return [
            volume
            for volume in self._volumes.values()
            if key in volume.labels and (not value or volume.labels[key] == value)
        ]

    async def close(self) -> None:
        """See `Engine`."""
        for container in list(self._containers):
            await self.remove(container)
