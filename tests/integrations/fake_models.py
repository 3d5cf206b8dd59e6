"""Model servers on loopback: they speak the real wire formats and answer from a script.

`FakeModels` serves OpenAI's chat completions and responses and Anthropic's messages over real
HTTP, streamed or whole, as the client asks. It keeps every request, and refuses (400) what the
real APIs would refuse: a tool without a schema, a call without its result, a result without its
call, an empty error.
"""

import json
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .loopback import Handler, Loopback

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
USAGE = {"input": 10, "output": 5}


@dataclass(frozen=True)
class Use:
    """A tool that the model wants to use."""

    name: str
    input: Mapping[str, Any] | str
    """What the model passes; a string is sent as it is, for JSON that is none."""
    id: str = "use_1"

    @property
    def json(self) -> str:
        return self.input if isinstance(self.input, str) else json.dumps(self.input)


@dataclass(frozen=True)
class Reply:
    """What the model says next."""

    text: str = ""
    uses: tuple[Use, ...] = ()
    items: tuple[dict[str, Any], ...] = ()
    """Items of the responses API that have no like in the other two, such as a shell call."""


def use(name: str, input: Mapping[str, Any] | str, id: str = "use_1") -> Reply:
    """A reply that uses one tool."""
    return Reply(uses=(Use(name, input, id),))


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    """Where it goes on with a thread that the server holds: with all that came before."""


class Refused(Exception):
    """The real API would answer 400."""


def must(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


# Chat completions.


def check_chat(body: Mapping[str, Any]) -> None:
    must(body.get("model"), "model is required")
    for tool in body.get("tools", ()):
        must(tool["type"] == "function", "a tool is a function")
        check_function(tool["function"], "parameters")
    open_calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            must(message["tool_call_id"] in open_calls, "a result without its call")
            must(isinstance(message["content"], str | list), "a result is text or parts")
            open_calls.remove(message["tool_call_id"])
            continue
        must(not open_calls, f"calls without results: {open_calls}")
        if message["role"] == "assistant":
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
            must(open_calls or message.get("content"), "an assistant says something or calls")
    must(not open_calls, f"calls without results: {open_calls}")


def check_function(function: Mapping[str, Any], schema: str) -> None:
    must(NAME.fullmatch(function["name"]), f"no name for a tool: {function['name']!r}")
    must(function.get(schema, {}).get("type") == "object", f"{function['name']} has no schema")


def chat(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.uses:
        message["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.name, "arguments": one.json},
            }
            for one in reply.uses
        ]
    finish = "tool_calls" if reply.uses else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": USAGE["input"],
            "completion_tokens": USAGE["output"],
            "total_tokens": sum(USAGE.values()),
        },
    }


def chat_events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any] | str]:
    (choice,) = whole["choices"]
    base = {**whole, "object": "chat.completion.chunk", "usage": None}
    delta = dict(choice["message"])
    delta["tool_calls"] = [
        {"index": index, **call} for index, call in enumerate(delta.get("tool_calls", ()))
    ]
    for part, finish in ((delta, None), ({}, choice["finish_reason"])):
        yield {**base, "choices": [{"index": 0, "delta": part, "finish_reason": finish}]}
    yield {**base, "choices": [], "usage": whole["usage"]}
    yield "[DONE]"


# Responses.

CALLS = {
    "function_call": "function_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "custom_tool_call": "custom_tool_call_output",
}


def check_responses(body: Mapping[str, Any]) -> None:
    must(body.get("model"), "model is required")
    for tool in body.get("tools", ()):
        if tool["type"] == "function":
            check_function(tool, "parameters")
        else:
            must(tool["type"] in ("shell", "apply_patch", "custom"), f"no tool: {tool['type']}")
    asked = body["input"] if isinstance(body["input"], list) else []
    calls = {item["call_id"]: item["type"] for item in asked if item.get("type") in CALLS}
    for item in asked:
        if item.get("type") in CALLS.values():
            kind = calls.pop(item["call_id"], None)
            must(kind is not None, "a result without its call")
            must(CALLS[str(kind)] == item["type"], f"{item['type']} does not answer a {kind}")
            unknown = set(item) - {"type", "call_id", "id", "output", "status", "max_output_length"}
            must(not unknown, f"unknown parameter: {sorted(unknown)}")
    must(not calls, f"calls without results: {sorted(calls)}")


def responses(reply: Reply) -> dict[str, Any]:
    output: list[dict[str, Any]] = [*reply.items]
    output += [
        {
            "type": "function_call",
            "id": f"fc_{one.id}",
            "call_id": one.id,
            "name": one.name,
            "arguments": one.json,
            "status": "completed",
        }
        for one in reply.uses
    ]
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        output.append(
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "fake",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": USAGE["input"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": USAGE["output"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(USAGE.values()),
        },
    }


def responses_events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(whole["output"]):
        for what in ("added", "done"):
            events.append(
                {"type": f"response.output_item.{what}", "output_index": index, "item": item}
            )
    events.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


# Messages.


def check_messages(body: Mapping[str, Any]) -> None:
    must(body.get("model"), "model is required")
    must(body.get("max_tokens"), "max_tokens is required")
    for tool in body.get("tools", ()):
        if tool.get("type", "custom") == "custom":
            check_function(tool, "input_schema")
        else:
            must(NATIVE.get(tool["type"]) == tool["name"], f"no such tool: {tool}")
    open_uses: list[str] = []
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        must(blocks, "content is required")
        results = [block for block in blocks if block["type"] == "tool_result"]
        must(
            sorted(block["tool_use_id"] for block in results) == sorted(open_uses),
            f"the uses {open_uses} need their results in the next message",
        )
        for block in results:
            check_result(block)
        open_uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
    must(not open_uses, f"uses without results: {open_uses}")


NATIVE = {
    "bash_20250124": "bash",
    "text_editor_20250728": "str_replace_based_edit_tool",
}


def check_result(block: Mapping[str, Any]) -> None:
    content = block.get("content")
    must(content or not block.get("is_error"), "content cannot be empty if is_error is true")
    for part in content if isinstance(content, list) else ():
        must(part["type"] in ("text", "image", "document"), f"no such content: {part['type']}")
        must(part["type"] != "text" or part["text"], "text content blocks must be non-empty")


def joined(body: Mapping[str, Any], held: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """A request with what the server holds of its thread."""
    thread = body.get("thread") or {}
    if thread.get("type") != "continue":
        return body
    before = held[thread["previous_message_id"]]
    must("tools" not in body and "system" not in body, "a thread keeps its tools and its system")
    return {**before, **body, "messages": [*before["messages"], *body["messages"]]}


def messages(reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    content += [
        {"type": "tool_use", "id": one.id, "name": one.name, "input": one.input}
        for one in reply.uses
    ]
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": content,
        "stop_reason": "tool_use" if reply.uses else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": USAGE["input"], "output_tokens": USAGE["output"]},
    }


def messages_events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            start = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": whole["usage"]}
    yield {"type": "message_stop"}


APIS = {
    "/v1/chat/completions": (check_chat, chat, chat_events),
    "/v1/responses": (check_responses, responses, responses_events),
    "/v1/messages": (check_messages, messages, messages_events),
}


class FakeModels(Loopback):
    """One server of all three APIs. `root` is the address for Anthropic's clients."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        """What clients sent, in order. Refused ones are here, too."""
        self._replies: list[Reply] = []
        self._threads: dict[str, Mapping[str, Any]] = {}
        self._lock = threading.Lock()

    @property
    def base_url(self) -> str:
        """The address for OpenAI's clients."""
        return f"{self.root}/v1"

    def script(self, *replies: Reply) -> None:
        """Forget what was; answer with these from now on, one after another."""
        with self._lock:
            self._replies = list(replies)
            self.requests.clear()

    @property
    def left(self) -> int:
        """How many replies nobody has asked for yet."""
        return len(self._replies)

    @property
    def last(self) -> Mapping[str, Any]:
        """The body of the last request."""
        return self.requests[-1].body

    def post(self, handler: Handler, path: str, body: Mapping[str, Any]) -> None:
        """Answer from the script."""
        with self._lock:
            try:
                must(path in APIS, f"there is no {path}")
                check, make, events = APIS[path]
                body = joined(body, self._threads)
                check(body)
                must(self._replies, "the script is over")
            except (Refused, KeyError, TypeError) as error:
                message = f"{type(error).__name__}: {error}"
                refusal = {"type": "invalid_request_error", "message": message}
                return self.send_json(handler, {"type": "error", "error": refusal}, 400)
            finally:
                self.requests.append(Request(path, dict(handler.headers), body))
            whole = make(self._replies.pop(0))
            if "thread" in body:
                said = {"role": "assistant", "content": whole["content"]}
                self._threads[whole["id"]] = {**body, "messages": [*body["messages"], said]}
        if body.get("stream"):
            return self.send(handler, as_sse(events(whole)), "text/event-stream")
        return self.send_json(handler, whole)


def as_sse(events: Iterable[Mapping[str, Any] | str]) -> bytes:
    """Events as a stream of server-sent events."""
    lines: list[str] = []
    for event in events:
        if isinstance(event, str):
            lines.append(f"data: {event}\n\n")
        else:
            name = f"event: {event['type']}\n" if "type" in event else ""
            lines.append(f"{name}data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


def results(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The tool results that a request to the messages API ends with."""
    content = body["messages"][-1]["content"]
    return [block for block in content if block["type"] == "tool_result"]
