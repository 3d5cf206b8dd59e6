"""Tunnels end to end: programs in a real container, the proxy, and servers on this machine.

What the proxy allows and refuses is in `egress`; here everything that is asked for is allowed,
and it is about bytes: that they arrive, all of them, and hold up nothing else.

The server is at 127.0.0.2, which no program in a container takes for its own loopback.
"""

import contextlib
import hashlib
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner import Policy, Runner, SandboxLost, Session, Settings, Status
from runner.answers import RequestFailed
from runner.app import open_store
from runner.containers import PROXY_PORT, network_of
from runner.engine import ContainerSpec
from runner.errors import ConfigurationError, RunnerError, SandboxError
from runner.images import DEFAULT_IMAGE
from runner.sandbox import Sandbox
from runner.sessions import Lease, SessionOptions, Sessions
from runner.testing import FakeEngine
from tests.conftest import make_settings
from tests.host import docker, process, wait_until

HERE = "127.0.0.2"
MIB = 1024**2
PIECE_BYTES = 64 * 1024

PROGRAM = """
import hashlib, os, socket, struct, sys, threading

def proxy():
    return socket.create_connection(("127.0.0.1", 3128))

def connect(word):
    connection = proxy()
    target = f"{TARGET[0]}:{TARGET[1]}"
    connection.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        byte = connection.recv(1)
        assert byte, head
        head += byte
    assert head.startswith(b"HTTP/1.1 200 "), head
    connection.sendall(word)
    return connection

def exactly(connection, length):
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        assert piece, f"an end after {data!r}"
        data += piece
    return data

def rest(connection):
    digest, length = hashlib.sha256(), 0
    while data := connection.recv(65536):
        digest.update(data)
        length += len(data)
    return f"{length} {digest.hexdigest()}"
"""
"""What all programs in the container begin with."""


class Server:
    """A server that does what the first byte says:

    e: send back all that comes; d: once all has come, say what it was; p: pour 10 MiB;
    f: flood, for as long as somebody takes it; s: swallow all that comes.
    """

    def __init__(self) -> None:
        self.poured = hashlib.sha256(b"10 MiB" * 2 * MIB).digest() * (10 * MIB // 32)
        self.open = 0
        self.sent = 0
        """Bytes of floods."""
        self.received = 0
        """Bytes swallowed."""
        self._listening = socket.create_server((HERE, 0), backlog=128)
        self.port = int(self._listening.getsockname()[1])
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._count(+1)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # whoever asked is gone
            self._do(connection, connection.recv(1))
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self.open += change

    def _do(self, connection: socket.socket, word: bytes) -> None:
        digest, length = hashlib.sha256(), 0
        if word == b"p":
            connection.sendall(self.poured)
        while word == b"f":
            self.sent += connection.send(bytes(PIECE_BYTES))
        while word in (b"e", b"d", b"s") and (data := connection.recv(PIECE_BYTES)):
            if word == b"e":
                connection.sendall(data)
            digest.update(data)
            length += len(data)
            self.received += len(data) * (word == b"s")
        if word == b"d":
            connection.sendall(f"{length} {digest.hexdigest()}".encode())

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def policy_for(server: Server) -> str:
    return (
        "version: 1\ndefault: allow\nnetwork:\n  allow:\n"
        f"    - {{host: {HERE}, ports: {server.port}}}\n"
    )


@pytest.fixture(scope="module")
def runner(
    docker_daemon: None, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """A runner whose sessions may reach the server."""
    settings = make_settings(
        tmp_path_factory.mktemp("data"), network="allowlist", max_connections=64
    )
    with Runner(policy=Policy.parse(policy_for(server)), settings=settings) as made:
        yield made
    shutil.rmtree(settings.runtime_dir, ignore_errors=True)


def open_session(runner: Runner, server: Server, **options: Any) -> Session:
    """A session with the beginning of its programs."""
    session = runner.session(**options)
    session.write("/workspace/t.py", f"TARGET = ('{HERE}', {server.port})\n{PROGRAM}")
    return session


@pytest.fixture(scope="module")
def session(runner: Runner, server: Server, carrier: str) -> Iterator[Session]:
    with open_session(runner, server, carrier=carrier) as session:
        yield session


def runs(session: Session, program: str, **options: Any) -> str:
    """What a program in the container says."""
    session.write("/workspace/p.py", f"from t import *\n{program}")
    done = session.bash("python3 p.py", **options)
    assert done.status is Status.OK, done.text
    return done.output


def starts(session: Session, program: str) -> None:
    """Start a program that stays."""
    session.write("/workspace/b.py", f"from t import *\n{program}")
    session.bash("python3 b.py </dev/null >b.log 2>&1 & echo $! >b.pid")


def ends(session: Session) -> None:
    """End the program that stayed."""
    session.bash("kill -9 $(cat b.pid)")


# Bytes.


@pytest.mark.docker
def test_programs_connect_by_http_and_by_socks(session: Session, server: Server) -> None:
    assert runs(session, "c = connect(b'e'); c.sendall(b'hi'); print(exactly(c, 2))") == "b'hi'\n"
    socks = """
c = proxy()
c.sendall(bytes([5, 1, 0]))
assert exactly(c, 2) == bytes([5, 0])
c.sendall(bytes([5, 1, 0, 1]) + socket.inet_aton(TARGET[0]) + struct.pack("!H", TARGET[1]))
assert exactly(c, 10)[:2] == bytes([5, 0])
c.sendall(b"ehi")
print(exactly(c, 2))
"""
    assert runs(session, socks) == "b'hi'\n"


@pytest.mark.docker
def test_ten_mebibytes_arrive_intact_in_both_directions(session: Session, server: Server) -> None:
    program = """
data = os.urandom(10 * 2**20)
up = connect(b"d")
up.sendall(data)
up.shutdown(socket.SHUT_WR)
sent = f"{len(data)} {hashlib.sha256(data).hexdigest()}".encode()
assert exactly(up, len(sent)) == sent
assert up.recv(1) == b""
echo = connect(b"e")
thread = threading.Thread(target=lambda: (echo.sendall(data), echo.shutdown(socket.SHUT_WR)))
thread.start()
assert rest(echo).encode() == sent
thread.join()
print(rest(connect(b"p")))
"""
    poured = f"{len(server.poured)} {hashlib.sha256(server.poured).hexdigest()}\n"
    assert runs(session, program) == poured


@pytest.mark.docker
def test_who_reads_slowly_slows_the_server_and_still_gets_all(
    session: Session, server: Server
) -> None:
    before = server.sent
    program = """
c = connect(b"f")
exactly(c, 1000)
os.mkfifo("go")
open("go").read()
exactly(c, 20 * 2**20)
print("all")
"""
    starts(session, program)
    settled = wait_until(lambda: stands_still(server, before))
    # What the kernels on the way hold, and a window. It pours forever.
    assert settled < 30 * MIB
    assert session.bash("echo > go; while ! grep all b.log; do sleep 0.05; done").output == "all\n"
    wait_until(lambda: server.open == 0)


def stands_still(server: Server, before: int) -> int:
    """How much the server has sent, once it sends no more."""
    first = server.sent
    threading.Event().wait(0.3)
    return first - before if server.sent == first > before else 0


@pytest.mark.docker
def test_many_connections_one_after_the_other_and_at_once(session: Session, server: Server) -> None:
    program = """
def once():
    c = connect(b"e")
    c.sendall(b"hi")
    return exactly(c, 2)
for _ in range(20):
    assert once() == b"hi"
together = [connect(b"e") for _ in range(64)]
for c in together:
    c.sendall(b"hi")
print({exactly(c, 2) for c in together})
"""
    assert runs(session, program) == "{b'hi'}\n"
    wait_until(lambda: server.open == 0)


# What must not suffer.


@pytest.mark.docker
def test_calls_go_on_while_programs_connect_and_send_as_fast_as_they_can(
    session: Session, server: Server
) -> None:
    before = server.received
    program = """
def push():
    c = connect(b"s")
    while True:
        c.sendall(bytes(65536))

def pester():
    while True:
        proxy().close()

for what in [push] * 8 + [pester] * 4:
    threading.Thread(target=what).start()
"""
    starts(session, program)
    wait_until(lambda: server.received > before + 10 * MIB)
    for _ in range(20):
        assert session.bash("echo hi", timeout_s=5.0).output == "hi\n"
    flowing = server.received
    wait_until(lambda: server.received > flowing)
    ends(session)
    wait_until(lambda: server.open == 0)

    assert runs(session, "c = connect(b'e'); c.sendall(b'on'); print(exactly(c, 2))") == "b'on'\n"


@pytest.mark.docker
def test_a_program_that_is_killed_ends_its_connections(session: Session, server: Server) -> None:
    before = server.received
    starts(session, "c = connect(b's')\nwhile True:\n    c.sendall(bytes(65536))")
    wait_until(lambda: server.received > before)
    ends(session)

    wait_until(lambda: server.open == 0)


@pytest.mark.docker
def test_a_lost_container_ends_its_connections_and_the_next_one_has_new_ones(
    session: Session, server: Server
) -> None:
    before = server.sent
    starts(session, "c = connect(b'f')\nwhile c.recv(65536):\n    pass")
    wait_until(lambda: server.sent > before + MIB)
    docker("kill", str(session.info.container_id))
    wait_until(lambda: server.open == 0)
    with contextlib.suppress(SandboxLost):  # it may be known by now
        session.bash("true")

    assert runs(session, "c = connect(b'e'); c.sendall(b'on'); print(exactly(c, 2))") == "b'on'\n"


@pytest.mark.docker
def test_whoever_takes_over_a_session_serves_its_network(
    runner: Runner, server: Server, carrier: str
) -> None:
    with open_session(runner, server, carrier=carrier, kept=True) as session:
        starts(session, "c = connect(b'e')\nprint(rest(c))")
        wait_until(lambda: server.open == 1)
    wait_until(lambda: server.open == 0)
    code = f"""
from runner import Policy
with Runner(policy=Policy.parse({policy_for(server)!r}), settings=settings) as runner:
    with runner.attach({session.id!r}, wait_s=10) as session:
        session.write("/workspace/p.py", "from t import *; print(exactly(connect(b'ex'), 1))")
        for line in session.bash("tail -n 1 b.log; python3 p.py").output.splitlines():
            say(line)
"""
    try:
        with process(runner.settings, code) as other:
            # Who listened before is gone, and its connections with it.
            assert other.hears() == "ConnectionResetError: [Errno 104] Connection reset by peer"
            assert other.hears() == "b'x'"
    finally:
        runner.close_session(session.id, wait_s=10)


# Variables, and who gets them.

PROXY = "http://127.0.0.1:3128"


class RecordingEngine(FakeEngine):
    """Remembers what its containers were to be like."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[ContainerSpec] = []

    async def create(self, spec: ContainerSpec) -> str:
        self.specs.append(spec)
        return await super().create(spec)


def variables(settings: Settings, **options: Any) -> dict[str, str]:
    """Those of a session's container, but for its home."""
    engine = RecordingEngine()
    with Runner("default", engine=engine, settings=settings) as runner:
        runner.session(**options).close()
    (spec,) = engine.specs
    return {name: value for name, value in spec.environment.items() if name != "HOME"}


@pytest.mark.parametrize("network", ["allowlist", "open"])
def test_programs_are_told_where_the_proxy_is(settings: Settings, network: str) -> None:
    found = variables(settings, network=network)

    lower = {name: value for name, value in found.items() if name.islower()}
    assert lower == {
        "http_proxy": PROXY,
        "https_proxy": PROXY,
        "all_proxy": PROXY,
        "no_proxy": "localhost,127.0.0.1,::1",
    }
    assert found == lower | {name.upper(): value for name, value in lower.items()}


def test_without_a_network_there_are_no_variables(settings: Settings) -> None:
    assert variables(settings) == {}


def test_variables_that_a_session_is_opened_with_come_first(settings: Settings) -> None:
    given = {"http_proxy": "http://elsewhere", "A": "1"}
    found = variables(settings, network="open", environment=given)

    assert found == {**variables(settings, network="open"), **given}


# Whoever attaches to sandboxes, to serve their network.


class Attached:
    """Counts what it is given, and may fail at it."""

    def __init__(self, failure: BaseException | None = None):
        self.given: list[tuple[str, Sandbox]] = []
        self._failure = failure

    async def __call__(self, lease: Lease, sandbox: Sandbox) -> None:
        self.given.append((lease.info.id, sandbox))
        lease.added_environment.update(A="added", B="added")
        if self._failure is not None:
            raise self._failure
        await sandbox.listen(PROXY_PORT, lambda tunnel: None)


@contextlib.asynccontextmanager
async def sessions_with(
    settings: Settings, attached: Attached, engine: FakeEngine | None = None
) -> AsyncIterator[Sessions]:
    with open_store(settings) as store:
        made = Sessions(engine or FakeEngine(), store, settings, on_sandbox=attached)
        try:
            yield made
        finally:
            await made.close()


def options(**changes: Any) -> SessionOptions:
    return SessionOptions(image=DEFAULT_IMAGE, **{"network": "open", **changes})


@pytest.mark.anyio
async def test_whoever_attaches_is_given_every_sandbox_of_a_session_with_a_network(
    settings: Settings,
) -> None:
    attached, engine = Attached(), FakeEngine()
    async with sessions_with(settings, attached, engine) as sessions:
        lease = await sessions.open(options(kept=True))
        first = await lease.sandbox()
        await engine.kill(str(lease.info.container_id))
        with pytest.raises(SandboxLost):
            await first.ping()
        rebuilt = await lease.sandbox()
        await lease.release()
        async with await sessions.adopt(lease.info.id) as adopting:
            adopted = await adopting.sandbox()
            await adopting.close()

    assert attached.given == [(lease.info.id, it) for it in (first, rebuilt, adopted)]


@pytest.mark.anyio
async def test_nobody_attaches_to_a_session_without_a_network(settings: Settings) -> None:
    attached = Attached()
    async with (
        sessions_with(settings, attached) as sessions,
        await sessions.open(options(network="none")) as lease,
    ):
        await lease.sandbox()
        old = {name: value for name, value in lease.info.options.items() if name != "network"}
        assert network_of(replace(lease.info, options=old)) == "none"

    assert attached.given == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (RequestFailed("address_in_use", "Address already in use"), SandboxError),
        (ConfigurationError("no such host"), ConfigurationError),
    ],
)
async def test_a_session_whose_network_can_not_be_served_is_not_opened(
    settings: Settings, failure: Exception, error: type[RunnerError]
) -> None:
    attached = Attached(failure)
    async with sessions_with(settings, attached) as sessions:
        with pytest.raises(error, match=str(failure)):
            await sessions.open(options())

    assert attached.given[0][1].lost is not None
    with open_store(settings) as store:
        assert store.sessions() == []


@pytest.mark.anyio
async def test_variables_that_are_added_give_way_to_those_of_the_session(
    settings: Settings,
) -> None:
    async with (
        sessions_with(settings, Attached()) as sessions,
        await sessions.open(options(environment={"B": "given"})) as lease,
    ):
        assert lease.environment == {"A": "added", "B": "given"}
