"""One reading of what a client sent, or the error that answers it."""

import json
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.mcp_server.messages import MAX_MESSAGE_BYTES, Refused, read


def refused(data: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        read(data)
    return caught.value


def request(**changes: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", **changes}).encode()


def test_a_request_a_notification_and_an_answer_are_read() -> None:
    assert isinstance(read(request()), types.JSONRPCRequest)
    assert isinstance(read(b'{"jsonrpc":"2.0","method":"x"}'), types.JSONRPCNotification)
    assert isinstance(read(b'{"jsonrpc":"2.0","id":1,"result":{}}'), types.JSONRPCResponse)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a":NaN}',
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_that_is_read_in_one_way_is_a_parse_error(data: bytes) -> None:
    assert refused(data).code == types.PARSE_ERROR


@pytest.mark.parametrize("id_", [None, True, 1.5, [], {}])
def test_an_id_that_is_neither_text_nor_integer_is_an_invalid_request(id_: object) -> None:
    refusal = refused(request(id=id_))

    assert (refusal.code, refusal.answer.id) == (types.INVALID_REQUEST, None)


@pytest.mark.parametrize("data", [b"[]", b"1", b'"x"', b"null", b"{}"])
def test_what_is_no_message_is_an_invalid_request(data: bytes) -> None:
    assert refused(data).code == types.INVALID_REQUEST


@pytest.mark.parametrize("more", [{"result": {}}, {"error": {"code": 1, "message": ""}}])
def test_what_is_a_request_and_an_answer_is_neither(more: dict[str, Any]) -> None:
    assert refused(request(**more)).code == types.INVALID_REQUEST
    assert refused(request(method=5, **more)).code == types.INVALID_REQUEST


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.integers() | JSON,
        "method": st.text() | JSON,
        "params": st.dictionaries(st.text(), JSON) | JSON,
        "result": st.dictionaries(st.text(), JSON) | JSON,
        "error": st.fixed_dictionaries({"code": st.integers(), "message": st.text()}) | JSON,
    },
)


@given(st.binary() | (LIKELY | JSON).map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_message_that_can_be_sent_on_or_is_refused(data: bytes) -> None:
    try:
        message = read(data)
    except Refused as refusal:
        message = refusal.answer

    message.model_dump_json(by_alias=True, exclude_unset=True)


def test_a_batch_is_not_taken_whatever_is_in_it() -> None:
    assert refused(b"[" + request() + b"]").code == types.INVALID_REQUEST


def test_parameters_that_are_no_object_are_answered_to_their_request() -> None:
    refusal = refused(request(params=["ls"], id="seven"))

    assert (refusal.code, refusal.id) == (types.INVALID_PARAMS, "seven")


def test_another_version_of_json_rpc_is_answered_to_its_request() -> None:
    refusal = refused(request(jsonrpc="1.0"))

    assert (refusal.code, refusal.id) == (types.INVALID_REQUEST, 1)


def test_a_message_that_is_too_long_is_not_even_parsed() -> None:
    assert refused(b"{" * (MAX_MESSAGE_BYTES + 1)).code == types.INVALID_REQUEST


def test_the_answer_names_the_request_or_says_that_there_is_none() -> None:
    answer = refused(b"{").answer.model_dump_json(by_alias=True, exclude_unset=True)

    assert json.loads(answer)["id"] is None
