"""Tunnels out of gVisor, whose network stack is its own: loopback, resets and all."""

import hashlib
import shutil
from collections.abc import Iterator

import pytest

from runner import Policy, Runner, Session
from tests.conftest import make_settings
from tests.gvisor.conftest import RUNTIME
from tests.host import wait_until
from tests.test_network import Server, ends, open_session, policy_for, runs, starts

MIB = 1024**2


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def session(
    gvisor: None, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    settings = make_settings(
        tmp_path_factory.mktemp("gvisor"), runtime=RUNTIME, network="allowlist"
    )
    policy = Policy.parse(policy_for(server))
    with (
        Runner(policy=policy, settings=settings) as runner,
        open_session(runner, server) as session,
    ):
        yield session
    shutil.rmtree(settings.runtime_dir, ignore_errors=True)


def test_bytes_arrive_and_each_end_ends_by_itself(session: Session, server: Server) -> None:
    program = """
data = os.urandom(2 * 2**20)
up = connect(b"d")
up.sendall(data)
up.shutdown(socket.SHUT_WR)
sent = f"{len(data)} {hashlib.sha256(data).hexdigest()}".encode()
assert exactly(up, len(sent)) == sent
assert up.recv(1) == b""
print(rest(connect(b"p")))
"""
    poured = f"{len(server.poured)} {hashlib.sha256(server.poured).hexdigest()}\n"
    assert runs(session, program) == poured
    wait_until(lambda: server.open == 0)


def test_a_program_that_is_killed_ends_its_connections(session: Session, server: Server) -> None:
    before = server.received
    starts(session, "c = connect(b's')\nwhile True:\n    c.sendall(bytes(65536))")
    wait_until(lambda: server.received > before + MIB)
    ends(session)
    wait_until(lambda: server.open == 0)
