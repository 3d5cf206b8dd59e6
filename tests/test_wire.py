"""The wire format: what is encoded comes back, and nothing else comes through.

Bytes only; what the two ends make of messages is in `test_sandbox` and `test_helper_server`.
"""

import json
import struct
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.helper import wire
from runner.helper.wire import Decoder, Kind, Message, ProtocolError, encode
from tests.wire_messages import BOTH, WITH_PAYLOAD, messages

patient = settings(deadline=None)
"""A machine in heavy use is no defect."""

MARKER = bytes(range(16))
KINDS = {name: number for name, number in vars(Kind).items() if name.isupper()}

VALID: dict[int, dict[str, Any]] = {
    Kind.HELLO: {
        "role": "helper",
        "version": 3,
        "expires_s": 1.5,
        "idle_s": None,
        "uid": 1000,
        "gid": 1000,
        "shell": True,
        "python": "3.11.2",
        "seccomp": False,
    },
    Kind.PING: {},
    Kind.PONG: {},
    Kind.RUN: {
        "shell": "echo €",
        "argv": None,
        "cwd": "/workspace",
        "env": {"A": "1"},
        "stdin": False,
        "input": False,
        "errors": False,
        "user": None,
        "deadline_s": 60,
        "spill_after_bytes": 1,
        "spill_limit_bytes": 2,
        "background": "keep",
        "watch": True,
    },
    Kind.CANCEL: {},
    Kind.CREDIT: {"bytes": 1},
    Kind.READ: {"path": "/a", "judged": None, "limit_bytes": 1},
    Kind.WRITE: {"path": "/a", "judged": "/b"},
    Kind.REPLACE: {"path": "/a", "judged": None, "old_bytes": 1, "limit_bytes": 1},
    Kind.INPUT: {"end": False},
    Kind.SIGNAL: {"signal": 15},
    Kind.PART: {"path": "/a", "judged": None, "start": 0, "limit_bytes": 1},
    Kind.LINES: {"path": "/a", "judged": None, "first": 1, "count": 1, "limit_bytes": 1},
    Kind.APPEND: {"path": "/a", "judged": "/b"},
    Kind.EDIT: {"path": "/a", "judged": None, "edits": [[1, 2, False]], "limit_bytes": 1},
    Kind.LIST: {
        "path": "/a",
        "judged": None,
        "hidden": ["x"],
        "glob": "**/*.py",
        "depth": 1,
        "max_entries": 1,
    },
    Kind.LISTEN: {"port": 3128},
    Kind.RESOLVE: {"path": "/a"},
    Kind.SEARCH: {
        "path": "/",
        "judged": "/b",
        "hidden": ["x"],
        "pattern": "x",
        "ignore_case": False,
        "include": "",
        "max_matches": 200,
        "max_file_bytes": 1,
    },
    Kind.WATCH: {"root": "/workspace", "patterns": ["(?s:.*)/\\.envrc"]},
    Kind.WATCHED: {"directories": 1, "complete": True},
    Kind.OUTPUT: {},
    Kind.ERRORS: {},
    Kind.TAKEN: {"bytes": 1},
    Kind.RAN: {
        "exit_code": 0,
        "signal": None,
        "ended": "exited",
        "background": 0,
        "oom_killed": False,
        "output_bytes": 0,
        "errors_bytes": 0,
        "spill_path": None,
        "spill_bytes": 0,
        "touched": [["/workspace/.envrc", "created"]],
        "touched_count": 1,
        "touched_complete": True,
    },
    Kind.CONTENT: {},
    Kind.PIECE: {"size": 1},
    Kind.PAGE: {"size": 1, "lines": 1, "first": 1, "count": 1, "binary": False},
    Kind.EDITED: {"counts": [1], "written": True},
    Kind.LISTED: {
        "entries": 0,
        "truncated": False,
        "skipped_unreadable": 0,
        "skipped_hidden": 0,
    },
    Kind.LISTENING: {},
    Kind.OPENED: {},
    Kind.DATA: {},
    Kind.TOOK: {"bytes": 1},
    Kind.SHUT: {},
    Kind.DROP: {},
    Kind.WROTE: {"bytes": 1},
    Kind.REPLACED: {"occurrences": 1},
    Kind.FOUND: {
        "matches": 0,
        "truncated": False,
        "files": 0,
        "skipped_large": 0,
        "skipped_binary": 0,
        "skipped_unreadable": 0,
        "skipped_special": 0,
        "skipped_hidden": 0,
    },
    Kind.RESOLVED: {"path": "/b"},
    Kind.FAILED: {"code": "not_found", "detail": "no such file or directory"},
}


def a_call(kind: int) -> int:
    """A number that a frame of this kind may bear."""
    return 1 + wire.TUNNEL_BASE * (kind in wire.TUNNELLED)


def frame(kind: int, body: bytes = b"", payload: bytes = b"", call: int | None = None) -> bytes:
    """A frame of any content, legal or not."""
    call = a_call(kind) if call is None else call
    head = struct.pack("!BII", kind, call, len(body))
    return struct.pack("!I", len(head) + len(body) + len(payload)) + head + body + payload


def decoder(kinds: frozenset[int] = BOTH, *, resync: bool = False) -> Decoder:
    """A decoder that has seen its marker."""
    made = Decoder(MARKER, kinds, resync=resync)
    made.feed(MARKER)
    return made


def drain(of: Decoder) -> list[Message]:
    messages = []
    while (message := of.next_message()) is not None:
        messages.append(message)
    return messages


def chunks(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def encoded(given_messages: Iterable[Message]) -> bytes:
    return b"".join(encode(*message) for message in given_messages)


# What comes through.


@patient
@given(st.lists(messages(), max_size=5), st.lists(st.integers(0, 10**6), max_size=20))
def test_messages_come_back_as_they_were_however_their_bytes_are_cut(
    sent: list[Message], cuts: list[int]
) -> None:
    receiving = Decoder(MARKER, BOTH)
    received = []
    for chunk in chunks(MARKER + encoded(sent), cuts):
        receiving.feed(chunk)
        received += drain(receiving)
    assert received == sent
    assert receiving.at_frame_start()


@patient
@given(st.lists(messages(), min_size=1, max_size=3))
def test_messages_come_back_when_the_bytes_arrive_one_at_a_time(sent: list[Message]) -> None:
    receiving = Decoder(MARKER, BOTH)
    received = []
    for byte in MARKER + encoded(sent):
        receiving.feed(bytes([byte]))
        received += drain(receiving)
    assert received == sent


def test_every_kind_has_a_schema_a_sender_and_a_place_in_these_tests() -> None:
    assert set(KINDS.values()) == set(wire.SCHEMA) == BOTH == set(VALID)
    both_ways = {Kind.HELLO, Kind.DATA, Kind.TOOK, Kind.SHUT, Kind.DROP}
    assert both_ways == wire.FROM_HOST & wire.FROM_HELPER
    assert both_ways - {Kind.HELLO} | {Kind.OPENED} == wire.TUNNELLED
    assert wire.FINAL < wire.FROM_HELPER


@patient
@given(st.binary(max_size=200), st.lists(messages(), max_size=3))
def test_everything_before_the_marker_is_skipped(noise: bytes, sent: list[Message]) -> None:
    receiving = Decoder(MARKER, BOTH)
    receiving.feed(noise)
    assert not receiving.synced or MARKER in noise
    receiving.feed(MARKER + encoded(sent))
    assert drain(receiving) == sent


def test_noise_before_the_marker_is_not_kept() -> None:
    receiving = Decoder(MARKER, BOTH)
    tracemalloc.start()
    try:
        for _ in range(64):
            receiving.feed(bytes(1024**2))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * 1024**2
    assert receiving.next_message() is None


def test_a_marker_cut_in_two_is_found() -> None:
    for cut in range(1, 16):
        receiving = Decoder(MARKER, BOTH)
        receiving.feed(b"noise" + MARKER[:cut])
        assert not receiving.synced
        receiving.feed(MARKER[cut:] + encode(Kind.PING, 7))
        assert drain(receiving) == [Message(Kind.PING, 7, {}, b"")]


def test_a_marker_of_another_length_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Decoder(b"short", BOTH)


# A new conversation in the middle of an old one.


@patient
@given(
    st.lists(messages(), max_size=3),
    messages(),
    st.integers(0, 10**6),
    st.lists(messages(), max_size=3),
    st.lists(st.integers(0, 1000), max_size=20),
)
def test_a_marker_in_mid_frame_starts_a_new_conversation(
    before: list[Message], unfinished: Message, cut: int, after: list[Message], cuts: list[int]
) -> None:
    torn = encode(*unfinished)
    torn = torn[: cut % len(torn)]
    # The first bytes of a marker arrive together; nothing could tell fewer from a frame's own.
    cuts = [cut for cut in cuts if not 0 < cut - len(torn) < 4]
    receiving = decoder(resync=True)
    receiving.feed(encoded(before))
    assert drain(receiving) == before
    received: list[Message] = []
    data = torn + MARKER + encoded(after)
    for chunk in chunks(data, [cut for cut in cuts if cut < len(data)]):
        conversations = receiving.conversations
        receiving.feed(chunk)
        if receiving.conversations != conversations:
            received = []
        received += drain(receiving)
    assert received == after
    assert receiving.conversations == 2
    assert receiving.at_frame_start()


@pytest.mark.parametrize("arrived", range(4, 16))
def test_a_marker_that_is_just_arriving_does_not_complete_a_torn_frame(arrived: int) -> None:
    torn = encode(Kind.WRITE, 1, VALID[Kind.WRITE], b"content")[:-4]
    receiving = decoder(resync=True)
    receiving.feed(torn + MARKER[:arrived])
    assert receiving.next_message() is None
    receiving.feed(MARKER[arrived:] + encode(Kind.PING, 2))
    assert drain(receiving) == [Message(Kind.PING, 2, {}, b"")]


def test_a_frame_that_ends_like_the_start_of_a_marker_comes_with_the_next_bytes() -> None:
    receiving = decoder(resync=True)
    receiving.feed(encode(Kind.WRITE, 1, VALID[Kind.WRITE], b"content" + MARKER[:9]))
    assert receiving.next_message() is None
    receiving.feed(encode(Kind.PING))
    assert [message.kind for message in drain(receiving)] == [Kind.WRITE, Kind.PING]


def test_whole_messages_of_the_old_conversation_are_dropped_with_it() -> None:
    receiving = decoder(resync=True)
    receiving.feed(encode(Kind.PING, 1) + MARKER + encode(Kind.PING, 2))
    assert [message.call for message in drain(receiving)] == [2]


def test_without_resync_a_second_marker_is_not_looked_for() -> None:
    receiving = decoder()
    receiving.feed(encode(Kind.WRITE, 1, VALID[Kind.WRITE], MARKER))
    assert drain(receiving)[0].payload == MARKER
    assert receiving.conversations == 1


# What does not come through.


@patient
@given(st.binary(max_size=300))
@example(struct.pack("!I", wire.MAX_FRAME_BYTES))
@example(b"\xff" * 13)
def test_garbage_raises_nothing_but_a_protocol_error(garbage: bytes) -> None:
    receiving = decoder()
    receiving.feed(garbage)
    try:
        drain(receiving)
    except ProtocolError:
        return


@patient
@given(st.sampled_from(sorted(BOTH)), st.binary(max_size=200), st.binary(max_size=50))
def test_a_frame_of_garbage_raises_nothing_but_a_protocol_error(
    kind: int, body: bytes, payload: bytes
) -> None:
    receiving = decoder()
    receiving.feed(frame(kind, body, payload))
    try:
        drain(receiving)
    except ProtocolError:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@patient
@given(st.sampled_from(sorted(BOTH)), st.data())
def test_a_field_of_another_value_raises_nothing_but_a_protocol_error(
    kind: int, data: st.DataObject
) -> None:
    fields = dict(VALID[kind])
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), unique=True)) if fields else ():
        fields[name] = data.draw(json_values)
    receiving = decoder()
    receiving.feed(frame(kind, json.dumps(fields).encode()))
    try:
        (message,) = drain(receiving)
    except ProtocolError:
        return
    assert message.fields == fields


@pytest.mark.parametrize("kind", [Kind.WRITE, Kind.CONTENT, Kind.RUN])
def test_a_claimed_length_allocates_nothing(kind: int) -> None:
    claims = struct.pack("!IBII", wire.MAX_PAYLOAD_BYTES, kind, 1, 0)
    receiving = decoder()
    tracemalloc.start()
    try:
        receiving.feed(claims)
        assert receiving.next_message() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
    assert not receiving.at_frame_start()


def rejected(kind: int, body: bytes, payload: bytes = b"") -> str:
    """Why a frame is refused."""
    receiving = decoder()
    receiving.feed(frame(kind, body, payload))
    with pytest.raises(ProtocolError) as caught:
        receiving.next_message()
    return str(caught.value)


def with_fields(kind: int, **changes: Any) -> bytes:
    return json.dumps({**VALID[kind], **changes}).encode()


@pytest.mark.parametrize("kind", [0, 4, 15, 54, 63, 127, 255])
def test_an_unknown_kind_is_refused_by_both_ends(kind: int) -> None:
    assert "unexpected kind" in rejected(kind, b"")
    with pytest.raises(ProtocolError, match="unknown kind"):
        encode(kind, a_call(kind))


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [(wire.FROM_HELPER, kind) for kind in sorted(wire.FROM_HOST - wire.FROM_HELPER)]
    + [(wire.FROM_HOST, kind) for kind in sorted(wire.FROM_HELPER - wire.FROM_HOST)],
)
def test_a_frame_in_the_wrong_direction_is_refused(kinds: frozenset[int], kind: int) -> None:
    receiving = decoder(kinds)
    receiving.feed(encode(kind, a_call(kind), VALID[kind]))
    with pytest.raises(ProtocolError, match="unexpected kind"):
        receiving.next_message()


@pytest.mark.parametrize("kind", sorted(BOTH))
def test_an_unknown_field_is_refused_by_both_ends(kind: int) -> None:
    assert "unknown field 'decision'" in rejected(kind, with_fields(kind, decision="allow"))
    with pytest.raises(ProtocolError, match="unknown field"):
        encode(kind, a_call(kind), {**VALID[kind], "decision": "allow"})


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in sorted(BOTH) for name in VALID[kind]]
)
def test_a_missing_field_is_refused_by_both_ends(kind: int, name: str) -> None:
    fields = {key: value for key, value in VALID[kind].items() if key != name}
    assert name in rejected(kind, json.dumps(fields).encode() if fields else b"")
    with pytest.raises(ProtocolError, match="missing"):
        encode(kind, a_call(kind), fields)


WRONG: list[tuple[int, str, Any]] = [
    (Kind.CREDIT, "bytes", True),  # a bool is an int to Python
    (Kind.CREDIT, "bytes", -1),
    (Kind.CREDIT, "bytes", 1.0),
    (Kind.CREDIT, "bytes", "1"),
    (Kind.CREDIT, "bytes", None),
    (Kind.CREDIT, "bytes", 2**63),
    (Kind.RAN, "exit_code", "0"),
    (Kind.RAN, "exit_code", False),
    (Kind.RAN, "exit_code", 256),  # the low byte of which is 0
    (Kind.RAN, "exit_code", -1),
    (Kind.RAN, "signal", 0),
    (Kind.RAN, "signal", 128),
    (Kind.RAN, "signal", 9.0),
    (Kind.RAN, "ended", "timed_out"),
    (Kind.RAN, "ended", ["exited"]),
    (Kind.RAN, "oom_killed", 0),
    (Kind.RAN, "spill_path", 5),
    (Kind.FAILED, "code", "own_code"),
    (Kind.FAILED, "code", None),
    (Kind.FAILED, "code", {"not_found": 1}),
    (Kind.FAILED, "detail", None),
    (Kind.HELLO, "role", "operator"),
    (Kind.HELLO, "version", "1"),
    (Kind.HELLO, "expires_s", -0.5),
    (Kind.HELLO, "expires_s", 2**31),
    (Kind.HELLO, "expires_s", 1e400),  # becomes Infinity, which is no JSON
    (Kind.HELLO, "shell", 1),
    (Kind.RUN, "argv", "echo"),
    (Kind.RUN, "argv", ["echo", 1]),
    (Kind.RUN, "env", {"A": 1}),
    (Kind.RUN, "env", [["A", "1"]]),
    (Kind.RUN, "stdin", "yes"),
    (Kind.RUN, "deadline_s", True),
    (Kind.RUN, "deadline_s", "60"),
    (Kind.RUN, "background", "detach"),
    (Kind.FOUND, "truncated", "false"),
    (Kind.FOUND, "matches", None),
    (Kind.RESOLVED, "path", None),
    (Kind.RESOLVED, "path", ""),
    (Kind.RESOLVED, "path", "workspace/a"),
    (Kind.RESOLVED, "path", "//workspace"),
    (Kind.RESOLVED, "path", "/workspace/"),
    (Kind.RESOLVED, "path", "/workspace//a"),
    (Kind.RESOLVED, "path", "/workspace/./a"),
    (Kind.RESOLVED, "path", "/workspace/../etc/passwd"),
    (Kind.RESOLVED, "path", "/workspace/.."),
    (Kind.RESOLVED, "path", "/workspace/a\0.txt"),
    (Kind.RESOLVED, "path", "/" + "x" * wire.MAX_PATH_BYTES),
    (Kind.RESOLVED, "path", "/" + "é" * 2048),
    (Kind.READ, "judged", "a"),
    (Kind.WRITE, "judged", "/a/../b"),
    (Kind.REPLACE, "judged", "/a/"),
    (Kind.SEARCH, "judged", ""),
    (Kind.SEARCH, "hidden", None),
    (Kind.SEARCH, "hidden", "x"),
    (Kind.RUN, "input", None),
    (Kind.RUN, "errors", 1),
    (Kind.RUN, "user", 0),  # a number, too, is a text
    (Kind.RUN, "deadline_s", -1),
    (Kind.RAN, "errors_bytes", -1),
    (Kind.INPUT, "end", None),
    (Kind.SIGNAL, "signal", 0),
    (Kind.SIGNAL, "signal", 128),
    (Kind.SIGNAL, "signal", "TERM"),
    (Kind.TAKEN, "bytes", -1),
    (Kind.PART, "start", -1),
    (Kind.PART, "judged", "a"),
    (Kind.LINES, "first", 1.0),
    (Kind.LINES, "judged", "/a/../b"),
    (Kind.APPEND, "judged", "/a/"),
    (Kind.EDIT, "judged", ""),
    (Kind.EDIT, "edits", None),
    (Kind.EDIT, "edits", []),
    (Kind.EDIT, "edits", [[1, 2]]),
    (Kind.EDIT, "edits", [[1, 2, 0]]),
    (Kind.EDIT, "edits", [[-1, 2, False]]),
    (Kind.EDIT, "edits", [[1, -2, False]]),
    (Kind.EDIT, "edits", [[1, 2, False]] * (wire.MAX_EDITS + 1)),
    (Kind.EDITED, "counts", [-1]),
    (Kind.EDITED, "counts", [1] * (wire.MAX_EDITS + 1)),
    (Kind.EDITED, "written", None),
    (Kind.LIST, "judged", "a"),
    (Kind.LIST, "hidden", "x"),
    (Kind.LIST, "depth", -1),
    (Kind.LISTED, "truncated", 0),
    (Kind.PIECE, "size", 2**63),
    (Kind.PAGE, "binary", 1),
    (Kind.LISTEN, "port", 0),
    (Kind.LISTEN, "port", 2**16),
    (Kind.LISTEN, "port", "3128"),
    (Kind.LISTEN, "port", True),
    (Kind.TOOK, "bytes", -1),
    (Kind.TOOK, "bytes", 1.0),
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_a_field_of_the_wrong_type_or_range_is_refused_by_both_ends(
    kind: int, name: str, value: Any
) -> None:
    assert "invalid frame" in rejected(kind, with_fields(kind, **{name: value}))
    with pytest.raises(ProtocolError, match=f"wrong value for '{name}'"):
        encode(kind, a_call(kind), {**VALID[kind], name: value})


def failed(detail: bytes) -> bytes:
    return b'{"code":"io","detail":' + detail + b"}"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (failed(b'"\\ud800"'), "lone surrogate"),
        (failed(b'"\\udfff tail"'), "lone surrogate"),
        (failed(b'"\xed\xa0\x80"'), "utf-8"),  # a surrogate, encoded as if it were a character
        (failed(b'"\xff"'), "utf-8"),
        (failed(b'"\xc0\x80"'), "utf-8"),
        (failed(b'"a","detail":"b"'), "duplicate field"),
        (failed(b"NaN"), "NaN"),
        (failed(b"Infinity"), "Infinity"),
        (failed(b"-Infinity"), "Infinity"),
        (failed(b'"a"') + b"x", "Extra data"),
        (failed(b'"a\nb"'), "control character"),
        (failed(b"9" * 5000), "digits"),
        (failed(b"[" * 20_000 + b"]" * 20_000), "recursion"),
        # Too deep for Python up to 3.12, no text for those after.
        (failed(b'{"a":' * 8_000 + b"1" + b"}" * 8_000), "invalid frame"),
        (b"[]", "not an object"),
        (b'"FAILED"', "not an object"),
        (b"null", "not an object"),
        (b"0", "not an object"),
        (b" ", "Expecting value"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"{", "Expecting"),
    ],
)
def test_fields_that_are_not_strict_json_are_refused(body: bytes, why: str) -> None:
    assert why.lower() in rejected(Kind.FAILED, body).lower()


def test_a_duplicate_key_deep_inside_is_refused() -> None:
    body = json.dumps(VALID[Kind.RUN]).replace('{"A": "1"}', '{"A": "1", "A": "2"}').encode()
    assert "duplicate field" in rejected(Kind.RUN, body)


@pytest.mark.parametrize("key", ["\\ud800", "detail\\udc00"])
def test_half_a_surrogate_pair_in_a_key_is_refused(key: str) -> None:
    body = f'{{"{key}":"x","code":"io"}}'.encode()
    assert "invalid frame" in rejected(Kind.FAILED, body)


def test_a_whole_surrogate_pair_is_the_character_it_stands_for() -> None:
    receiving = decoder()
    receiving.feed(frame(Kind.FAILED, failed(b'"\\ud83d\\ude00"')))
    assert drain(receiving)[0].fields["detail"] == "😀"


@pytest.mark.parametrize("name", ["shell", "cwd"])
def test_half_a_surrogate_pair_is_not_sent(name: str) -> None:
    with pytest.raises(ProtocolError, match="surrogate"):
        encode(Kind.RUN, 1, {**VALID[Kind.RUN], name: "\udcff"})


@pytest.mark.parametrize("kind", sorted(BOTH - WITH_PAYLOAD))
def test_a_payload_where_none_belongs_is_refused_by_both_ends(kind: int) -> None:
    body = json.dumps(VALID[kind]).encode() if VALID[kind] else b""
    assert "carries no payload" in rejected(kind, body, b"x")
    with pytest.raises(ProtocolError, match="carries no payload"):
        encode(kind, a_call(kind), VALID[kind], b"x")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (struct.pack("!I", 0), "empty frame"),
        (struct.pack("!I", 8), "frame of 8 bytes"),
        (struct.pack("!I", wire.MAX_FRAME_BYTES + 1), "over the limit"),
        (struct.pack("!I", 2**32 - 1), "over the limit"),
        (struct.pack("!IBII", 20, Kind.WROTE, 1, 12), "longer than their frame"),
        (struct.pack("!IBII", 20, Kind.WROTE, 1, 2**32 - 1), "longer than their frame"),
        (struct.pack("!IBII", 10, Kind.PONG, 1, 0), "carries no payload"),
        (
            struct.pack("!IBII", 9 + wire.OUTPUT_CHUNK_BYTES + 1, Kind.OUTPUT, 1, 0),
            "over the limit",
        ),
        (struct.pack("!IBII", 9 + wire.MAX_PAYLOAD_BYTES + 1, Kind.CONTENT, 1, 0), "over the lim"),
        (struct.pack("!IBII", 9 + wire.INPUT_CHUNK_BYTES + 1, Kind.INPUT, 1, 0), "over the limit"),
        (
            struct.pack("!IBII", 9 + wire.TUNNEL_CHUNK_BYTES + 1, Kind.DATA, wire.TUNNEL_BASE, 0),
            "over the limit",
        ),
        (struct.pack("!IBII", 9, Kind.DATA, wire.TUNNEL_BASE - 1, 0), "no call"),
        (struct.pack("!IBII", 9, Kind.PONG, wire.TUNNEL_BASE, 0), "no call"),
        (
            struct.pack(
                "!IBII",
                9 + wire.MAX_SHORT_FIELDS_BYTES + 1,
                Kind.FAILED,
                1,
                wire.MAX_SHORT_FIELDS_BYTES + 1,
            ),
            "over the limit",
        ),
        (
            struct.pack(
                "!IBII", 9 + wire.MAX_FIELDS_BYTES + 1, Kind.RUN, 1, wire.MAX_FIELDS_BYTES + 1
            ),
            "over the limit",
        ),
    ],
)
def test_an_impossible_frame_is_refused_before_its_body_arrives(head: bytes, why: str) -> None:
    receiving = decoder()
    receiving.feed(head)
    with pytest.raises(ProtocolError, match=why):
        receiving.next_message()


@pytest.mark.parametrize("kind", sorted(BOTH))
def test_tunnels_and_requests_do_not_share_numbers(kind: int) -> None:
    tunnelled = kind in wire.TUNNELLED
    wrong = wire.TUNNEL_BASE - 1 if tunnelled else wire.TUNNEL_BASE
    receiving = decoder()
    receiving.feed(frame(kind, json.dumps(VALID[kind]).encode(), call=wrong))
    with pytest.raises(ProtocolError, match=f"no call {wrong}"):
        receiving.next_message()
    with pytest.raises(ProtocolError, match=f"no call {wrong}"):
        encode(kind, wrong, VALID[kind])


def test_a_frame_is_not_judged_before_its_head_is_whole() -> None:
    whole = frame(255, b"")
    receiving = decoder()
    receiving.feed(whole[:12])
    assert receiving.next_message() is None
    receiving.feed(whole[12:])
    with pytest.raises(ProtocolError, match="unexpected kind"):
        receiving.next_message()


@pytest.mark.parametrize(
    ("kind", "fields", "payload"),
    [
        (Kind.WRITE, VALID[Kind.WRITE], bytes(wire.MAX_PAYLOAD_BYTES + 1)),
        (Kind.OUTPUT, {}, bytes(wire.OUTPUT_CHUNK_BYTES + 1)),
        (Kind.DATA, {}, bytes(wire.TUNNEL_CHUNK_BYTES + 1)),
        (Kind.FAILED, {"code": "io", "detail": "x" * wire.MAX_SHORT_FIELDS_BYTES}, b""),
        (Kind.RUN, {**VALID[Kind.RUN], "shell": "x" * wire.MAX_FIELDS_BYTES}, b""),
    ],
    ids=["payload", "output", "tunnel", "detail", "command"],
)
def test_a_frame_over_the_limit_is_not_sent(
    kind: int, fields: dict[str, Any], payload: bytes
) -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(kind, a_call(kind), fields, payload)


@pytest.mark.parametrize("call", [-1, 2**32])
def test_a_call_number_that_does_not_fit_is_not_sent(call: int) -> None:
    with pytest.raises(ProtocolError, match="no call"):
        encode(Kind.PING, call)


def test_frames_of_the_largest_size_come_through() -> None:
    receiving = decoder()
    command = "\x01" * (2 * 1024**2)  # grows sixfold
    receiving.feed(encode(Kind.RUN, 1, {**VALID[Kind.RUN], "shell": command}))
    receiving.feed(encode(Kind.CONTENT, 2, {}, bytes(wire.MAX_PAYLOAD_BYTES)))
    first, second = drain(receiving)
    assert first.fields["shell"] == command
    assert len(second.payload) == wire.MAX_PAYLOAD_BYTES


def test_what_is_wrong_is_said_in_few_words_whatever_the_frame_holds() -> None:
    name = "\x1b[31m" + "x" * 10_000
    why = rejected(Kind.FAILED, json.dumps({**VALID[Kind.FAILED], name: 1}).encode())
    assert len(why) < 200
    assert "\x1b" not in why
