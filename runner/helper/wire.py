"""The protocol between the host and the helper: frames, messages, limits; no I/O.

Both ends import this module, so there is one definition of what may be said. A frame is

    length  u32   bytes that follow, at most MAX_FRAME_BYTES
    kind    u8    one of Kind
    call    u32   the request it belongs to, chosen by the host; 0 for the connection itself;
                  of a tunnel: its number, chosen by the helper, TUNNEL_BASE or above
    fields  u32   length of the JSON object that comes next
    JSON object, UTF-8, exactly the fields that SCHEMA lists for the kind
    payload       raw bytes to the end of the frame

all integers big-endian. A stream starts with the 16 bytes of a marker, then frames. The
marker lets an end that was left in the middle of a frame find the start of a new
conversation: the attach stream of a container outlives the process that used it.

Everything that arrives is hostile until `Decoder` has returned it: lengths are checked
before anything is allocated, kinds and fields are closed sets.
"""

import json
import struct
from typing import Any, NamedTuple

PROTOCOL_VERSION = 3

MARKER_BYTES = 16
MAX_PAYLOAD_BYTES = 16 * 1024**2 + 64 * 1024
"""A whole file of the default read limit (16 MiB) fits into one frame, with room for rows."""
MAX_FIELDS_BYTES = 16 * 1024**2
"""A 2 MiB command grows to at most six times its size as JSON (one control byte: ``\\u0000``)."""
MAX_SHORT_FIELDS_BYTES = 64 * 1024
"""Of kinds that carry no command, path or pattern; all of the helper's are such."""
MAX_FRAME_BYTES = MAX_PAYLOAD_BYTES + MAX_FIELDS_BYTES
MAX_PATH_BYTES = 4095
"""The longest path that Linux takes; no resolved one is longer."""
MAX_TOUCHED = 50
"""Protected files that one RAN names; it counts the others."""
MAX_TOUCHED_BYTES = 48 * 1024
"""How long they may be together as JSON in ASCII, so that a frame and a record have room."""
OUTPUT_CHUNK_BYTES = 256 * 1024
"""The most output that one frame carries."""
OUTPUT_WINDOW_BYTES = 1024**2
"""Output that may be on its way, per call, before the host has said that it took some."""

INPUT_CHUNK_BYTES = 64 * 1024
"""The most standard input that one frame carries."""
INPUT_WINDOW_BYTES = 256 * 1024
"""Standard input that may be on its way to one program, before the helper has said that the
program took some."""
TUNNEL_BASE = 2**31
"""Calls below are requests; tunnels are numbered from here."""
TUNNEL_CHUNK_BYTES = 64 * 1024
"""The most that one frame of a tunnel carries."""
TUNNEL_WINDOW_BYTES = 256 * 1024
"""What may be on its way in a tunnel, each way, before the other end has said that it took some."""
MAX_TUNNELS = 64
"""Tunnels of one container at once; the helper accepts no more, and more are an offence."""
MAX_EDITS = 1000
"""Replacements of one EDIT."""

_TELLING_BYTES = 4
"""So much of a marker, at the end of what arrived, is taken for the start of one. By chance a
frame ends like that once in four milliards, and then it waits for the bytes that follow."""

_PREFIX = struct.Struct("!I")
_HEAD = struct.Struct("!BII")


class ProtocolError(Exception):
    """The bytes are not a legal conversation; the stream can't be used any further."""


class Kind:
    """What a frame says. A closed set; numbers are never reused."""

    HELLO = 1
    """Either end, first of all: who I am and which version I speak."""
    PING = 2
    PONG = 3
    RUN = 16
    """Host: run a program; the payload is its standard input."""
    CANCEL = 17
    """Host: end the call and everything that runs below it."""
    CREDIT = 18
    """Host: I took so many bytes of output, you may send as many more."""
    READ = 19
    WRITE = 20
    REPLACE = 21
    """Host: the payload is the old bytes, then the new; `old_bytes` says where they meet."""
    SEARCH = 22
    RESOLVE = 23
    """Host: where does this path lead? What is judged is the answer."""
    WATCH = 24
    """Host: these files are protected; from now on tell what calls do to them."""
    INPUT = 25
    """Host: more standard input of a running program; `end` says that this was the last."""
    SIGNAL = 26
    """Host: send the signal to the program and what it runs in the foreground."""
    PART = 27
    """Host: some bytes of a file, from `start`."""
    LINES = 28
    """Host: some lines of a file, from line `first`, counted from 1."""
    APPEND = 29
    """Host: as WRITE, but behind what is there."""
    EDIT = 30
    """Host: several replacements in one file, all or none; the payload has the texts in turn."""
    LIST = 31
    """Host: what is below a directory."""
    OUTPUT = 32
    """Helper: more output of a running program."""
    RAN = 33
    """Helper: the program ended; the last frame of a RUN."""
    CONTENT = 34
    """Helper: a whole file; the last frame of a READ."""
    WROTE = 35
    REPLACED = 36
    FOUND = 37
    FAILED = 38
    """Helper: the request could not be carried out; the last frame of any request."""
    RESOLVED = 39
    WATCHED = 40
    ERRORS = 41
    """Helper: more standard error of a program whose errors are kept apart."""
    TAKEN = 42
    """Helper: the program took so many bytes of standard input, you may send as many more."""
    PIECE = 43
    PAGE = 44
    EDITED = 45
    LISTED = 46
    LISTEN = 47
    """Host: take connections on a port of the container's own loopback, and tunnel them."""
    LISTENING = 48
    OPENED = 49
    """Helper: a program of the container connected; this is its tunnel from now on."""
    DATA = 50
    """Either end of a tunnel: bytes of the connection."""
    TOOK = 51
    """Either end of a tunnel: I took so many bytes, you may send as many more."""
    SHUT = 52
    """Either end of a tunnel: nothing more will come from here but TOOK, and DROP in the end."""
    DROP = 53
    """Either end of a tunnel: it is over, and this was the last word of it from here. Whoever
    gets it first answers with DROP. The helper says it of itself when both ends have SHUT and
    all has arrived; at any other time it cuts the connection off."""


FAILURES = frozenset(
    {
        "no_user",
        "address_in_use",
        "not_found",
        "exists",
        "is_directory",
        "not_directory",
        "not_regular",
        "permission_denied",
        "read_only",
        "no_space",
        "file_too_large",
        "name_too_long",
        "link_loop",
        "moved",
        "bad_pattern",
        "bad_glob",
        "argument_list_too_long",
        "out_of_memory",
        "too_many_processes",
        "cancelled",
        "busy",
        "io",
        "internal",
    }
)
"""Why a request failed. `io` is any other answer of the operating system."""

CHANGES = frozenset({"created", "changed", "removed"})
"""What may have become of a protected file."""


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_exit_code(value: Any) -> bool:
    return type(value) is int and 0 <= value < 256


def _is_signal(value: Any) -> bool:
    return type(value) is int and 0 < value < 128


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**31


def _is_resolved(value: Any) -> bool:
    """Whether a path is absolute and has no empty name, `.` or `..`; links don't show."""
    if type(value) is not str or not value.startswith("/") or "\0" in value:
        return False
    if len(value.encode(errors="surrogatepass")) > MAX_PATH_BYTES:
        return False
    return value == "/" or not {"", ".", ".."} & set(value[1:].split("/"))


def _is_touched(value: Any) -> bool:
    """Whether these are pairs of a file and what became of it."""
    return type(value) is list and len(value) <= MAX_TOUCHED and all(map(_is_change, value))


def _is_change(value: Any) -> bool:
    if type(value) is not list or len(value) != 2 or not all(type(item) is str for item in value):
        return False
    path, change = value
    # Bytes that are no UTF-8 are U+FFFD here, so the length is that of characters.
    if not path.startswith("/") or "\0" in path or len(path) > MAX_PATH_BYTES:
        return False
    return change in CHANGES and not {"", ".", ".."} & set(path[1:].split("/"))


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _is_edits(value: Any) -> bool:
    """Whether these are replacements: bytes of the old text, of the new one, and whether all."""
    return type(value) is list and 0 < len(value) <= MAX_EDITS and all(map(_is_edit, value))


def _is_edit(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) == 3
        and _is_count(value[0])
        and _is_count(value[1])
        and _is_flag(value[2])
    )


def _is_counts(value: Any) -> bool:
    return type(value) is list and len(value) <= MAX_EDITS and all(map(_is_count, value))


def _is_port(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**16


def _is_mapping(value: Any) -> bool:
    return type(value) is dict and all(type(item) is str for item in value.values())


def _or_none(check: Any) -> Any:
    return lambda value: value is None or check(value)


def _one_of(*names: str) -> Any:
    return lambda value: type(value) is str and value in names


SCHEMA: dict[int, dict[str, Any]] = {
    Kind.HELLO: {
        "role": _one_of("host", "helper"),
        "version": _is_count,
        # From the host: how long the helper may live without a new greeting, and without work.
        "expires_s": _or_none(_is_seconds),
        "idle_s": _or_none(_is_seconds),
        # From the helper: what it found in its container.
        "uid": _or_none(_is_count),
        "gid": _or_none(_is_count),
        "shell": _or_none(_is_flag),
        "python": _or_none(_is_text),
        "seccomp": _or_none(_is_flag),
    },
    Kind.PING: {},
    Kind.PONG: {},
    Kind.RUN: {
        # One of the two: a line for /bin/sh, or a program and its arguments.
        "shell": _or_none(_is_text),
        "argv": _or_none(_is_texts),
        "cwd": _is_text,
        "env": _is_mapping,
        # None: the payload is empty and standard input is /dev/null.
        "stdin": _is_flag,
        # More standard input follows in INPUT frames; the payload is the beginning of it.
        "input": _is_flag,
        # Standard error comes apart, in ERRORS frames; else both are one stream, in order.
        "errors": _is_flag,
        # A name or number of the image's /etc/passwd; None: the container's own user.
        "user": _or_none(_is_text),
        # None: until it ends, or the container does.
        "deadline_s": _or_none(_is_seconds),
        # Output beyond this is also written to a file in the container, up to `spill_limit_bytes`.
        "spill_after_bytes": _is_count,
        "spill_limit_bytes": _is_count,
        "background": _one_of("keep", "kill"),
        # Whether RAN is to tell what happened to protected files; WATCH says which these are.
        "watch": _is_flag,
    },
    Kind.CANCEL: {},
    Kind.CREDIT: {"bytes": _is_count},
    # A path that was judged is where to act, without following any link; else it is `path`.
    Kind.READ: {"path": _is_text, "judged": _or_none(_is_resolved), "limit_bytes": _is_count},
    Kind.WRITE: {"path": _is_text, "judged": _or_none(_is_resolved)},
    Kind.REPLACE: {
        "path": _is_text,
        "judged": _or_none(_is_resolved),
        "old_bytes": _is_count,
        "limit_bytes": _is_count,
    },
    Kind.INPUT: {"end": _is_flag},
    Kind.SIGNAL: {"signal": _is_signal},
    Kind.PART: {
        "path": _is_text,
        "judged": _or_none(_is_resolved),
        "start": _is_count,
        "limit_bytes": _is_count,
    },
    Kind.LINES: {
        "path": _is_text,
        "judged": _or_none(_is_resolved),
        "first": _is_count,
        "count": _is_count,
        # The page ends before the line that would take it over this.
        "limit_bytes": _is_count,
    },
    Kind.APPEND: {"path": _is_text, "judged": _or_none(_is_resolved)},
    Kind.EDIT: {
        "path": _is_text,
        "judged": _or_none(_is_resolved),
        "edits": _is_edits,
        "limit_bytes": _is_count,
    },
    Kind.LIST: {
        "path": _is_text,
        "judged": _or_none(_is_resolved),
        # As for SEARCH.
        "hidden": _is_texts,
        # Over paths below the root, `**` for any directories; empty for all.
        "glob": _is_text,
        # Levels below the root; 0 is the root itself.
        "depth": _is_count,
        "max_entries": _is_count,
    },
    Kind.LISTEN: {"port": _is_port},
    Kind.RESOLVE: {"path": _is_text},
    # RE2 over whole paths below `root`, as `watch.fold` makes them.
    Kind.WATCH: {"root": _is_resolved, "patterns": _is_texts},
    Kind.SEARCH: {
        "path": _is_text,
        "judged": _or_none(_is_resolved),
        # RE2 over the resolved paths of files: those that match are passed over.
        "hidden": _is_texts,
        "pattern": _is_text,
        "ignore_case": _is_flag,
        "include": _is_text,
        "max_matches": _is_count,
        "max_file_bytes": _is_count,
    },
    Kind.OUTPUT: {},
    Kind.RAN: {
        "exit_code": _or_none(_is_exit_code),
        "signal": _or_none(_is_signal),
        # Why it ended: by itself, by CANCEL, by the helper's own clock, or because its
        # supervisor was killed from inside.
        "ended": _one_of("exited", "cancelled", "deadline", "killed"),
        "background": _is_count,
        "oom_killed": _is_flag,
        "output_bytes": _is_count,
        # Of standard error, where it was kept apart.
        "errors_bytes": _is_count,
        "spill_path": _or_none(_is_text),
        "spill_bytes": _is_count,
        # Protected files that were created, changed or removed since the last such answer: the
        # first of them, how many there are, and whether everything was looked at. None: nobody
        # asked.
        "touched": _is_touched,
        "touched_count": _is_count,
        "touched_complete": _or_none(_is_flag),
    },
    Kind.ERRORS: {},
    Kind.TAKEN: {"bytes": _is_count},
    Kind.CONTENT: {},
    # `size`: of the whole file.
    Kind.PIECE: {"size": _is_count},
    # `lines`: of the whole file; `count`: those that are here; `first`: the number of the first.
    Kind.PAGE: {
        "size": _is_count,
        "lines": _is_count,
        "first": _is_count,
        "count": _is_count,
        "binary": _is_flag,
    },
    # How often each old text occurred, up to the first that did so as it must not.
    Kind.EDITED: {"counts": _is_counts, "written": _is_flag},
    # The payload has a JSON array a line: path below the root, kind, size, time of change.
    Kind.LISTED: {
        "entries": _is_count,
        "truncated": _is_flag,
        "skipped_unreadable": _is_count,
        "skipped_hidden": _is_count,
    },
    Kind.LISTENING: {},
    Kind.OPENED: {},
    Kind.DATA: {},
    Kind.TOOK: {"bytes": _is_count},
    Kind.SHUT: {},
    Kind.DROP: {},
    Kind.WROTE: {"bytes": _is_count},
    Kind.REPLACED: {"occurrences": _is_count},
    Kind.FOUND: {
        "matches": _is_count,
        "truncated": _is_flag,
        "files": _is_count,
        "skipped_large": _is_count,
        "skipped_binary": _is_count,
        "skipped_unreadable": _is_count,
        "skipped_special": _is_count,
        "skipped_hidden": _is_count,
    },
    Kind.RESOLVED: {"path": _is_resolved},
    Kind.WATCHED: {"directories": _is_count, "complete": _is_flag},
    Kind.FAILED: {
        "code": lambda value: type(value) is str and value in FAILURES,
        "detail": _is_text,
    },
}

TUNNELLED = frozenset({Kind.OPENED, Kind.DATA, Kind.TOOK, Kind.SHUT, Kind.DROP})
"""Kinds whose `call` is a tunnel; those of all others are requests."""
FROM_HOST = frozenset(
    {
        Kind.HELLO,
        Kind.PING,
        Kind.RUN,
        Kind.CANCEL,
        Kind.CREDIT,
        Kind.READ,
        Kind.WRITE,
        Kind.REPLACE,
        Kind.SEARCH,
        Kind.RESOLVE,
        Kind.WATCH,
        Kind.INPUT,
        Kind.SIGNAL,
        Kind.PART,
        Kind.LINES,
        Kind.APPEND,
        Kind.EDIT,
        Kind.LIST,
        Kind.LISTEN,
        Kind.DATA,
        Kind.TOOK,
        Kind.SHUT,
        Kind.DROP,
    }
)
FINAL = frozenset(
    {
        Kind.RAN,
        Kind.CONTENT,
        Kind.WROTE,
        Kind.REPLACED,
        Kind.FOUND,
        Kind.RESOLVED,
        Kind.WATCHED,
        Kind.PIECE,
        Kind.PAGE,
        Kind.EDITED,
        Kind.LISTED,
        Kind.LISTENING,
        Kind.FAILED,
    }
)
"""Kinds that end the request they answer."""
FROM_HELPER = FINAL | TUNNELLED | {Kind.HELLO, Kind.PONG, Kind.OUTPUT, Kind.ERRORS, Kind.TAKEN}

_LONG_FIELDS = frozenset(
    {
        Kind.RUN,
        Kind.READ,
        Kind.WRITE,
        Kind.REPLACE,
        Kind.SEARCH,
        Kind.RESOLVE,
        Kind.WATCH,
        Kind.PART,
        Kind.LINES,
        Kind.APPEND,
        Kind.EDIT,
        Kind.LIST,
    }
)
_PAYLOADS = {
    Kind.RUN: MAX_PAYLOAD_BYTES,
    Kind.WRITE: MAX_PAYLOAD_BYTES,
    Kind.APPEND: MAX_PAYLOAD_BYTES,
    Kind.REPLACE: MAX_PAYLOAD_BYTES,
    Kind.EDIT: MAX_PAYLOAD_BYTES,
    Kind.INPUT: INPUT_CHUNK_BYTES,
    Kind.OUTPUT: OUTPUT_CHUNK_BYTES,
    Kind.ERRORS: OUTPUT_CHUNK_BYTES,
    Kind.CONTENT: MAX_PAYLOAD_BYTES,
    Kind.PIECE: MAX_PAYLOAD_BYTES,
    Kind.PAGE: MAX_PAYLOAD_BYTES,
    Kind.FOUND: MAX_PAYLOAD_BYTES,
    Kind.LISTED: MAX_PAYLOAD_BYTES,
    Kind.DATA: TUNNEL_CHUNK_BYTES,
}
"""The longest payload, by kind; the others have none."""
_NO_FIELDS: dict[str, Any] = {}


class Message(NamedTuple):
    """One frame, decoded."""

    kind: int
    call: int
    fields: dict[str, Any]
    payload: bytes


def encode(
    kind: int, call: int = 0, fields: dict[str, Any] | None = None, payload: bytes = b""
) -> bytes:
    """Make the frame of a message.

    Raises:
        ProtocolError: As for `encode_head`.
    """
    return encode_head(kind, call, fields, len(payload)) + payload


def encode_head(
    kind: int, call: int = 0, fields: dict[str, Any] | None = None, payload_length: int = 0
) -> bytes:
    """Make the frame of a message but for its payload, which follows as it is.

    Raises:
        ProtocolError: The fields are not those of the kind, or the frame is too large: a
            mistake of the caller, found before anything is sent.
    """
    fields = fields or _NO_FIELDS
    _check_fields(kind, fields)
    try:
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False) if fields else ""
        body = text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError("a text holds half of a surrogate pair") from error
    _check_lengths(kind, len(body), payload_length)
    if not 0 <= call < 2**32 or (kind in TUNNELLED) != (call >= TUNNEL_BASE):
        raise ProtocolError(f"there is no call {call} for a frame of kind {kind}")
    length = _HEAD.size + len(body) + payload_length
    return _PREFIX.pack(length) + _HEAD.pack(kind, call, len(body)) + body


class Decoder:
    """Turns received bytes into messages. It never blocks and never reads.

    `peer_kinds` are the kinds the other end may send: `FROM_HOST` or `FROM_HELPER`.
    `marker` is what the stream starts with; everything before it is skipped. With
    `resync`, the marker is looked for throughout, and one in the middle of the stream
    starts a new conversation: what was unfinished before it is dropped.
    """

    def __init__(self, marker: bytes, peer_kinds: frozenset[int], *, resync: bool = False):
        if len(marker) != MARKER_BYTES:
            raise ValueError(f"a marker has {MARKER_BYTES} bytes, not {len(marker)}")
        self.synced = False
        """The marker was seen."""
        self.conversations = 0
        """How many markers were seen."""
        self._marker = marker
        self._kinds = peer_kinds
        self._resync = resync
        self._buffer = bytearray()
        self._scanned = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take received bytes. Read the messages they complete with `next_message`."""
        self._buffer += data
        if self._resync or not self.synced:
            self._find_marker()

    def _find_marker(self) -> None:
        start = max(0, self._scanned - MARKER_BYTES + 1)
        at = self._buffer.rfind(self._marker, start)
        if at >= 0:
            del self._buffer[: at + MARKER_BYTES]
            self.synced = True
            self.conversations += 1
        elif not self.synced:
            del self._buffer[: -MARKER_BYTES + 1]
        self._scanned = len(self._buffer)

    def next_message(self) -> Message | None:
        """The next whole message, or None when more bytes are needed.

        Raises:
            ProtocolError: The bytes are not a legal frame. The decoder is of no use afterwards.
        """
        buffer = self._buffer
        available = self._before_next_marker() if self._resync else len(buffer)
        if not self.synced or available < _PREFIX.size:
            return None
        (length,) = _PREFIX.unpack_from(buffer)
        if length < _HEAD.size:
            raise ProtocolError("empty frame" if length == 0 else f"frame of {length} bytes")
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {length} bytes is over the limit")
        end = _PREFIX.size + length
        if available < _PREFIX.size + _HEAD.size:
            return None
        kind, call, fields_length = _HEAD.unpack_from(buffer, _PREFIX.size)
        payload_length = length - _HEAD.size - fields_length
        if kind not in self._kinds:
            raise ProtocolError(f"unexpected kind of frame: {kind}")
        if (kind in TUNNELLED) != (call >= TUNNEL_BASE):
            raise ProtocolError(f"there is no call {call} for a frame of kind {kind}")
        if payload_length < 0:
            raise ProtocolError("the fields are longer than their frame")
        _check_lengths(kind, fields_length, payload_length)
        if available < end:
            return None
        body_start = _PREFIX.size + _HEAD.size
        with memoryview(buffer) as view:
            fields = _parse(bytes(view[body_start : body_start + fields_length]))
            payload = bytes(view[body_start + fields_length : end])
        _check_fields(kind, fields)
        del buffer[:end]
        self._scanned = max(0, self._scanned - end)
        return Message(kind, call, fields, payload)

    def _before_next_marker(self) -> int:
        """How much of the buffer comes before a marker of which only the beginning is there."""
        at = self._buffer.rfind(self._marker[:_TELLING_BYTES], -MARKER_BYTES + 1)
        return at if at >= 0 and self._marker.startswith(self._buffer[at:]) else len(self._buffer)

    def at_frame_start(self) -> bool:
        """Whether nothing of an unfinished frame is held: an end of file here is a clean one."""
        return not self._buffer


def _parse(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        text = body.decode()
        fields = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid frame: {error}") from error
    if type(fields) is not dict:
        raise ProtocolError("invalid frame: the fields are not an object")
    if "\\u" in text and not _encodable(fields):
        raise ProtocolError("invalid frame: lone surrogate")
    return fields


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate field")
    return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _encodable(fields: dict[str, Any]) -> bool:
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_lengths(kind: int, fields_length: int, payload_length: int) -> None:
    longest_fields = MAX_FIELDS_BYTES if kind in _LONG_FIELDS else MAX_SHORT_FIELDS_BYTES
    longest_payload = _PAYLOADS.get(kind)
    if payload_length and longest_payload is None:
        raise ProtocolError(f"a frame of kind {kind} carries no payload")
    if fields_length > longest_fields or payload_length > (longest_payload or 0):
        raise ProtocolError(f"a frame of {fields_length + payload_length} bytes is over the limit")


def _check_fields(kind: int, fields: dict[str, Any]) -> None:
    schema = SCHEMA.get(kind)
    if schema is None:
        raise ProtocolError(f"unknown kind of frame: {kind}")
    for name, value in fields.items():
        check = schema.get(name)
        if check is None:
            raise ProtocolError(f"invalid frame: unknown field {name[:64]!r}")
        if not check(value):
            raise ProtocolError(f"invalid frame: wrong value for {name!r}")
    if len(fields) != len(schema):
        missing = sorted(set(schema) - set(fields))
        raise ProtocolError(f"invalid frame: missing {', '.join(missing)}")
