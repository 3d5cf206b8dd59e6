"""The name that a TLS client asks for, read from the first bytes that it sends. Pure.

It reads as much as it must and no more: an inner, encrypted name is not to be had here.
"""

from dataclasses import dataclass

MAX_HELLO_BYTES = 64 * 1024
MAX_RECORDS = 16
"""That a hello may be spread over. All of it is read again whenever more of it arrives."""
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_HOST_NAME = 0
_MAX_RECORD_BYTES = 16 * 1024 + 256


class NotHello(ValueError):
    """It starts like TLS and then is something else."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client's first bytes say."""

    tls: bool
    name: str | None = None
    """The server name that it asks for; None where it asks for none."""


UNRECOGNISED_NAME = b"\x15\x03\x01\x00\x02\x02\x70"
"""The alert that tells a TLS client that nobody here has this name."""


def read_hello(data: bytes) -> Hello | None:
    """What the first bytes of a connection say; None where more of them are needed.

    Raises:
        NotHello: They make no sense.
    """
    if data[:1] != bytes([_HANDSHAKE]) or data[1:2] not in (b"", b"\x03"):
        return Hello(tls=False) if data else None
    message = bytearray()
    at = 0
    for _ in range(MAX_RECORDS):
        header = data[at : at + 5]
        if len(header) < 5:
            break
        size = int.from_bytes(header[3:5])
        if header[0] != _HANDSHAKE or header[1] != 3 or not 0 < size <= _MAX_RECORD_BYTES:
            raise NotHello("a record that is no handshake")
        record = data[at + 5 : at + 5 + size]
        message += record
        if message[0] != _CLIENT_HELLO:
            raise NotHello("a handshake that begins with something else than a hello")
        if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4]):
            body = bytes(message[4 : 4 + int.from_bytes(message[1:4])])
            return Hello(tls=True, name=_name(_Reader(body)))
        if len(record) < size:
            break
        at += 5 + size
    else:
        raise NotHello("a hello in too many records")
    if len(data) > MAX_HELLO_BYTES:
        raise NotHello("a hello without an end")
    return None


class _Reader:
    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise NotHello("a hello that ends too soon")
        self._at += count
        return found

    def counted(self, width: int) -> bytes:
        """What stands behind its own length, of so many bytes."""
        return self.take(int.from_bytes(self.take(width)))

    @property
    def empty(self) -> bool:
        return self._at == len(self._data)


def _name(hello: _Reader) -> str | None:
    hello.take(2 + 32)  # version, random
    hello.counted(1)  # session
    hello.counted(2)  # ciphers
    hello.counted(1)  # compression
    if hello.empty:
        return None
    extensions = _Reader(hello.counted(2))
    found: list[str] = []
    while not extensions.empty:
        kind = int.from_bytes(extensions.take(2))
        content = extensions.counted(2)
        if kind != _SERVER_NAME:
            continue
        names = _Reader(_Reader(content).counted(2))
        while not names.empty:
            sort = names.take(1)[0]
            name = names.counted(2)
            if sort == _HOST_NAME:
                found.append(name.decode("ascii", errors="backslashreplace"))
    if len(found) > 1:
        raise NotHello("a hello with several names")
    return found[0] if found else None
