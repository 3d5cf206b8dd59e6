"""Four read-only questions about sessions and jobs, for models, as text.

    rousseau_search_sessions, rousseau_list_sessions, rousseau_read_session, rousseau_cron_list

Owns their names, descriptions, schemas, and the exact text of each answer. These are
rousseau-agent's, so that who asked it can ask here. A session's messages are its calls and
their results; a job's prompt is what it runs.

Whoever may ask sees every session of the data directory, whoever's it was: which interface
offers the questions to whom is that interface's matter. Answers hold what containers wrote,
control characters included. They are bounded, and for programs, not for a terminal.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from runner.errors import ConfigurationError
from runner.model import Record, SessionInfo, shown
from runner.store import Store

__all__ = ["QUERIES", "Query", "answer"]

DEFAULT_LIMIT = 20
MAX_LIMIT = 500
"""The most rows of an answer, whatever was asked for."""
TRANSCRIPT_LIMIT_CHARACTERS = 1024**2
"""About what a transcript may hold. Further messages are left out, and counted."""
PROMPT_CHARACTERS = 400
_TITLE_CHARACTERS = 200
_BATCH_CALLS = 20

Answer = tuple[str, bool]
"""The text, and whether it is an error."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question, as it is offered."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of its arguments."""


_LIMIT = {"type": "integer", "description": "Cap rows returned. Default 20."}

QUERIES: tuple[Query, ...] = (
    Query(
        "rousseau_search_sessions",
        "Full-text search across every recorded rousseau session. Uses SQLite FTS5 syntax"
        " (phrases in double quotes, AND/OR/NOT, prefix wildcards).",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "FTS5 query"},
                "limit": {"type": "integer", "description": "Cap hits returned. Default 20."},
            },
            "required": ["query"],
        },
    ),
    Query(
        "rousseau_list_sessions",
        "List rousseau sessions newest-first.",
        {"type": "object", "properties": {"limit": _LIMIT}},
    ),
    Query(
        "rousseau_read_session",
        "Return the full transcript of a rousseau session by id.",
        {
            "type": "object",
            "properties": {"id": {"type": "string", "description": "Session id"}},
            "required": ["id"],
        },
    ),
    Query(
        "rousseau_cron_list",
        "List rousseau's scheduled cron jobs (name, schedule, prompt, delivery target).",
        {"type": "object", "properties": {}},
    ),
)
"""In the order in which they are offered."""


def answer(store: Store, name: str, arguments: Mapping[str, Any]) -> Answer:
    """Answer a question.

    Args:
        store: Where the records are.
        name: Of the question, one of `QUERIES`.
        arguments: Its decoded arguments. What does not fit the schema is an error result.

    Returns:
        The text, and whether it is an error.

    Raises:
        ConfigurationError: There is no such question.
        StoreError: The records can't be read, or this Python's SQLite can't search.
    """
    answering = _ANSWERS.get(name)
    if answering is None:
        raise ConfigurationError(
            f"there is no query {name!r}: there are {', '.join(query.name for query in QUERIES)}"
        )
    try:
        return answering(store, arguments), False
    except _Refused as error:
        return str(error), True


class _Refused(Exception):
    """The arguments can't be answered; the text says why."""


def _search(store: Store, arguments: Mapping[str, Any]) -> str:
    query = _text(arguments, "query")
    if not query.strip():
        raise _Refused("query is required")
    try:
        hits = store.search(query, limit=_limit(arguments))
    except ConfigurationError as error:
        raise _Refused(str(error)) from error
    found = []
    for hit in hits:
        info = store.session(hit.session_id)
        assert info is not None  # the store removes none
        found.append(
            f"session {hit.session_id} (rank {hit.rank:.2f})\n"
            f"    title:   {_title(info)}\n"
            f"    snippet: {hit.snippet}"
        )
    return "\n\n".join(found) or "(no matches)"


def _list(store: Store, arguments: Mapping[str, Any]) -> str:
    lines = [
        f"{info.id}  {_title(info)}  msgs={calls + results}  updated={_iso(info.used_at)}"
        for info, calls, results in store.recent_sessions(limit=_limit(arguments))
    ]
    return "\n".join(lines) or "(no sessions)"


def _read(store: Store, arguments: Mapping[str, Any]) -> str:
    session_id = _text(arguments, "id")
    if not session_id.strip():
        raise _Refused("id is required")
    info = store.session(session_id)
    if info is None:
        raise _Refused(f"session not found: {session_id[:_TITLE_CHARACTERS]}")
    total = sum(store.count_calls_of(session_id))
    parts = [
        f"id: {info.id}",
        f"title: {_title(info)}",
        f"created: {_iso(info.created_at)}",
        f"updated: {_iso(info.used_at)}",
        f"messages: {total}",
        "",
    ]
    room = TRANSCRIPT_LIMIT_CHARACTERS
    for number, (role, text) in enumerate(_messages(store, session_id)):
        message = "\n".join((f"[{number}] {role}", *(f"    {line}" for line in text.split("\n"))))
        if len(message) > room:
            # Those that came since they were counted are not missed.
            parts.append(f"(truncated: {max(1, total - number)} more messages)")
            break
        room -= len(message)
        parts.append(message)
    return "\n".join(parts)


def _messages(store: Store, session_id: str) -> Iterator[tuple[str, str]]:
    """The role and text of each message: a call, and its result once there is one."""
    after = 0
    while found := store.calls(session_id=session_id, after=after, limit=_BATCH_CALLS):
        for after, record in found:  # noqa: B007  the last one is where to go on
            yield "assistant", f"{record.tool} {record.arguments}"
            if record.status is not None:
                yield "tool", _result(record)


def _result(record: Record) -> str:
    """A call's text, as its model was shown it; without the line end that output has."""
    text = shown(record.output, record.error)
    return text if record.error is not None else text.removesuffix("\n")


def _cron_list(store: Store, arguments: Mapping[str, Any]) -> str:
    lines = [
        f"{job.name} [{'on' if job.enabled else 'off'}] {job.schedule} → {job.deliver}"
        f"  prompt={json.dumps(_bounded(job.prompt, PROMPT_CHARACTERS), ensure_ascii=False)}"
        f"  deliver={job.deliver}"
        for job in store.jobs()
    ]
    return "\n".join(lines) or "(no jobs)"


_ANSWERS: dict[str, Callable[[Store, Mapping[str, Any]], str]] = {
    "rousseau_search_sessions": _search,
    "rousseau_list_sessions": _list,
    "rousseau_read_session": _read,
    "rousseau_cron_list": _cron_list,
}


# Arguments and words.


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Refused(f"{name} must be a string")
    # JSON can hold half of a surrogate pair, which no record does.
    return value.encode("utf-8", "replace").decode()


def _limit(arguments: Mapping[str, Any]) -> int:
    """How many rows: what was asked for, within reason; the default for none or nonsense."""
    value = arguments.get("limit")
    if value is None:
        return DEFAULT_LIMIT
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Refused("limit must be an integer")
    return DEFAULT_LIMIT if value <= 0 else min(value, MAX_LIMIT)


def _title(info: SessionInfo) -> str:
    """What a session is called, on one line: by its opener, else its workspace's name."""
    if not info.title and info.managed:
        return "(untitled)"
    title = info.title or PurePath(info.workspace).name or info.workspace
    return _bounded(" ".join(title.split()), _TITLE_CHARACTERS)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
