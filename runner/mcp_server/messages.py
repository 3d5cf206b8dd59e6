"""JSON-RPC messages from bytes that a client sent: one reading, or the error to answer with.

Pure, and stricter than the SDK's own reading, which drops what it can't read, so that its
sender waits for ever, and takes a request whose id is `null` for a notification. It does not
know what methods there are.
"""

import json
from typing import Any

from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError

__all__ = ["MAX_MESSAGE_BYTES", "Refused", "read"]

MAX_MESSAGE_BYTES = 4 * 1024**2
"""The longest message: twice the longest input of a tool, for what JSON adds to it."""
SHOWN_CHARACTERS = 100
"""Of a client's text in an error."""


class Refused(Exception):
    """A message that can't be taken.

    Attributes:
        code: JSON-RPC's.
        reason: What is wrong with it.
        id: The request's, where one could be read.
    """

    def __init__(self, code: int, reason: str, id: RequestId | None = None):
        self.code = code
        self.reason = reason
        self.id = id
        super().__init__(reason)

    @property
    def answer(self) -> JSONRPCError:
        """What its sender is told."""
        error = ErrorData(code=self.code, message=self.reason)
        return JSONRPCError(jsonrpc="2.0", id=self.id, error=error)


def read(data: bytes) -> JSONRPCMessage:
    """The one message that a text is.

    Args:
        data: UTF-8 JSON.

    Raises:
        Refused: It is too long, no JSON, or not a single JSON-RPC message.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise Refused(INVALID_REQUEST, f"a message has {MAX_MESSAGE_BYTES} bytes at most")
    value = _parse(data)
    if isinstance(value, list):
        raise Refused(INVALID_REQUEST, "a message is one object: there are no batches")
    if not isinstance(value, dict):
        raise Refused(INVALID_REQUEST, "a message is a JSON object")
    found = value.get("id")
    is_id = isinstance(found, str) or (isinstance(found, int) and not isinstance(found, bool))
    known = found if is_id else None
    if "method" in value:
        if "id" in value and not is_id:
            raise Refused(INVALID_REQUEST, "the id of a request is a string or an integer")
        if not isinstance(value.get("params", {}), dict):
            raise Refused(INVALID_PARAMS, "params is an object", known)
    shapes = [shape for name, shape in _SHAPES.items() if name in value]
    if len(shapes) != 1:
        raise Refused(INVALID_REQUEST, "neither a request nor an answer", known)
    shape = JSONRPCNotification if shapes == [JSONRPCRequest] and "id" not in value else shapes[0]
    try:
        return shape.model_validate(value, by_name=False)
    except ValidationError:
        raise Refused(INVALID_REQUEST, "not a JSON-RPC 2.0 message", known) from None


_SHAPES: dict[str, type[JSONRPCRequest | JSONRPCResponse | JSONRPCError]] = {
    "method": JSONRPCRequest,
    "result": JSONRPCResponse,
    "error": JSONRPCError,
}
"""What a message is by the one of these properties that it has."""


def _parse(data: bytes) -> Any:
    try:
        text = data.decode()
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        if "\\u" in text:  # half of a surrogate pair can't be said again in an answer
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Refused(PARSE_ERROR, "invalid JSON: too many levels") from None
    except ValueError as error:  # no UTF-8, and no JSON
        reason = " ".join(str(error).split())[:SHOWN_CHARACTERS]
        raise Refused(PARSE_ERROR, f"invalid JSON: {reason}") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # Of two readings, a person may have been shown the other one.
        raise ValueError("an object has a property twice")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
