"""A helper that a test moves by hand, to say what a real one never would."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from runner.carrier import Carrier
from runner.engine import ContainerSpec
from runner.helper import wire
from runner.helper.wire import Kind
from runner.testing import FakeEngine, MemoryCarrier, memory_carriers

HELLO: dict[str, Any] = {
    "role": "helper",
    "version": wire.PROTOCOL_VERSION,
    "expires_s": None,
    "idle_s": None,
    "uid": 1000,
    "gid": 1000,
    "shell": True,
    "python": "puppet",
    "seccomp": True,
}
RAN: dict[str, Any] = {
    "exit_code": 0,
    "signal": None,
    "ended": "exited",
    "background": 0,
    "oom_killed": False,
    "output_bytes": 0,
    "errors_bytes": 0,
    "spill_path": None,
    "spill_bytes": 0,
    "touched": [],
    "touched_count": 0,
    "touched_complete": None,
}
FOUND: dict[str, Any] = {
    "matches": 0,
    "truncated": False,
    "files": 0,
    "skipped_large": 0,
    "skipped_binary": 0,
    "skipped_unreadable": 0,
    "skipped_special": 0,
    "skipped_hidden": 0,
}
ANSWERS: Mapping[int, tuple[int, dict[str, Any]]] = {
    Kind.RUN: (Kind.RAN, RAN),
    Kind.READ: (Kind.CONTENT, {}),
    Kind.WRITE: (Kind.WROTE, {"bytes": 0}),
    Kind.REPLACE: (Kind.REPLACED, {"occurrences": 1}),
    Kind.SEARCH: (Kind.FOUND, FOUND),
    Kind.RESOLVE: (Kind.RESOLVED, {"path": "/resolved"}),
    Kind.PING: (Kind.PONG, {}),
    Kind.WATCH: (Kind.WATCHED, {"directories": 1, "complete": True}),
}
"""What an honest helper would say to each request, if it did nothing."""

Act = Callable[["Puppet", wire.Message], None]
"""What a puppet does when the host asks something."""


def stay_silent(puppet: "Puppet", request: wire.Message) -> None:
    """Do nothing."""


def answer_well(puppet: "Puppet", request: wire.Message) -> None:
    """Say what an honest helper would."""
    if request.kind in ANSWERS:
        kind, fields = ANSWERS[request.kind]
        puppet.send(kind, request.call, fields)


class Puppet:
    """The container's end of a stream.

    It greets by itself, unless told otherwise. So it does with protected files: it says that
    it watches them, and that nothing was touched.
    """

    def __init__(
        self,
        carrier: Carrier,
        act: Act = stay_silent,
        *,
        greet: Callable[["Puppet"], None] | None = None,
        watches: bool = True,
    ):
        self.received: list[wire.Message] = []
        self.ended = asyncio.Event()
        self._carrier = carrier
        self._act = act
        self._greet = greet or (lambda puppet: puppet.send(Kind.HELLO, 0, HELLO))
        self._watches = watches
        self._watched: set[int] = set()
        self._decoder: wire.Decoder | None = None
        self._arrived = asyncio.Event()
        carrier.start(self._on_data, lambda error: self.ended.set())

    def _on_data(self, data: bytes | memoryview) -> None:
        if self._decoder is None:
            marker = bytes(data[: wire.MARKER_BYTES])
            self._decoder = wire.Decoder(marker, wire.FROM_HOST)
            self._carrier.send(marker)
        self._decoder.feed(data)
        while (message := self._decoder.next_message()) is not None:
            self.received.append(message)
            self._arrived.set()
            if message.kind == Kind.HELLO:
                self._greet(self)
            elif message.kind == Kind.WATCH and self._watches:
                answer_well(self, message)
            else:
                if message.kind == Kind.RUN and message.fields["watch"]:
                    self._watched.add(message.call)
                self._act(self, message)

    async def asked(self, kind: int, *, times: int = 1) -> wire.Message:
        """Wait until the host has said this so many times; the last of them."""
        while True:
            found = [message for message in self.received if message.kind == kind]
            if len(found) >= times:
                return found[times - 1]
            self._arrived.clear()
            await self._arrived.wait()

    def send(
        self, kind: int, call: int, fields: Mapping[str, Any] | None = None, payload: bytes = b""
    ) -> None:
        """Say something legal, though perhaps not here."""
        said = dict(fields or {})
        if call in self._watched and said.get("touched_complete", False) is None:
            said["touched_complete"] = True
        self.say(wire.encode(kind, call, said, payload))

    def say(self, data: bytes) -> None:
        """Say anything."""
        self._carrier.send(data)

    def hang_up(self) -> None:
        """End the stream, behind what was said."""
        asyncio.get_running_loop().call_soon(self._carrier.close)


class PuppetEngine(FakeEngine):
    """Its first container's helper is a puppet; those after it are as usual."""

    def __init__(self, act: Act, *, greet: Callable[[Puppet], None] | None = None):
        super().__init__()
        self.puppet: Puppet | None = None
        self.specs: list[ContainerSpec] = []
        self._act = act
        self._greet = greet

    async def create(self, spec: ContainerSpec) -> str:
        """See `Engine`."""
        self.specs.append(spec)
        return await super().create(spec)

    async def attach(self, container: str) -> Carrier:
        """See `Engine`."""
        if self.puppet is not None:
            return await super().attach(container)
        ours, theirs = memory_carriers()
        self.puppet = Puppet(theirs, self._act, greet=self._greet)
        self._find(container).carriers.append(ours)
        return ours


def puppet_pair(act: Act = stay_silent) -> tuple[MemoryCarrier, Puppet]:
    """The host's end of a stream, and a puppet at the other."""
    ours, theirs = memory_carriers()
    return ours, Puppet(theirs, act)
