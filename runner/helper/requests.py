"""Requests about files: from the fields of a frame to the frame that answers it.

A table, and a function for each kind that unpacks, asks the module that does it, and packs.
They run in worker threads; what they raise is the server's matter.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from runner.helper import files, listing, paging, search, wire
from runner.helper.files import Failure

Answer = tuple[int, dict[str, Any], bytes]
"""Kind, fields and payload."""
Hider = Callable[[Sequence[str]], Callable[[bytes], bool] | None]
"""Makes of patterns what tells which paths are passed over; see `search.hider`."""


def _read(message: wire.Message, event: threading.Event) -> Answer:
    fields = message.fields
    limit_bytes = min(fields["limit_bytes"], wire.MAX_PAYLOAD_BYTES)
    content = files.read(fields["path"], limit_bytes, judged=fields["judged"])
    return wire.Kind.CONTENT, {}, content


def _part(message: wire.Message, event: threading.Event) -> Answer:
    fields = message.fields
    limit_bytes = min(fields["limit_bytes"], wire.MAX_PAYLOAD_BYTES)
    size, content = paging.part(
        fields["path"], fields["start"], limit_bytes, judged=fields["judged"]
    )
    return wire.Kind.PIECE, {"size": size}, content


def _lines(message: wire.Message, event: threading.Event) -> Answer:
    fields = message.fields
    about, content = paging.page(
        fields["path"],
        fields["first"],
        fields["count"],
        fields["limit_bytes"],
        event.is_set,
        judged=fields["judged"],
    )
    return wire.Kind.PAGE, about, content


def _write(message: wire.Message, event: threading.Event) -> Answer:
    fields = message.fields
    count = files.write(fields["path"], message.payload, judged=fields["judged"])
    return wire.Kind.WROTE, {"bytes": count}, b""


def _append(message: wire.Message, event: threading.Event) -> Answer:
    fields = message.fields
    count = files.append(fields["path"], message.payload, judged=fields["judged"])
    return wire.Kind.WROTE, {"bytes": count}, b""


def _replace(message: wire.Message, event: threading.Event) -> Answer:
    fields = message.fields
    middle = fields["old_bytes"]
    count = files.replace(
        fields["path"],
        message.payload[:middle],
        message.payload[middle:],
        fields["limit_bytes"],
        judged=fields["judged"],
    )
    return wire.Kind.REPLACED, {"occurrences": count}, b""


def _edit(message: wire.Message, event: threading.Event) -> Answer:
    fields = message.fields
    edits = []
    at = 0
    for old_bytes, new_bytes, every in fields["edits"]:
        middle, end = at + old_bytes, at + old_bytes + new_bytes
        edits.append((message.payload[at:middle], message.payload[middle:end], every))
        at = end
    if at != len(message.payload):
        raise Failure("internal", f"edits of {at} bytes, but {len(message.payload)} came")
    counts, is_written = files.edit(
        fields["path"], edits, fields["limit_bytes"], event.is_set, judged=fields["judged"]
    )
    return wire.Kind.EDITED, {"counts": counts, "written": is_written}, b""


def search_files(
    message: wire.Message, event: threading.Event, hider: Hider = search.hider
) -> Answer:
    """Answer SEARCH; `hider` makes the test for what is passed over."""
    fields = message.fields
    found, rows = search.search(
        fields["path"],
        fields["pattern"],
        fields["ignore_case"],
        fields["include"],
        fields["max_matches"],
        fields["max_file_bytes"],
        event.is_set,
        judged=fields["judged"],
        hides=hider(fields["hidden"]),
    )
    return wire.Kind.FOUND, found, rows


def list_entries(
    message: wire.Message, event: threading.Event, hider: Hider = search.hider
) -> Answer:
    """Answer LIST; `hider` as for `search_files`."""
    fields = message.fields
    listed, rows = listing.entries(
        fields["path"],
        fields["glob"],
        fields["depth"],
        fields["max_entries"],
        event.is_set,
        judged=fields["judged"],
        hides=hider(fields["hidden"]),
    )
    return wire.Kind.LISTED, listed, rows


def _resolve(message: wire.Message, event: threading.Event) -> Answer:
    return wire.Kind.RESOLVED, {"path": files.resolve(message.fields["path"])}, b""


REQUESTS: dict[int, Callable[[wire.Message, threading.Event], Answer]] = {
    wire.Kind.READ: _read,
    wire.Kind.PART: _part,
    wire.Kind.LINES: _lines,
    wire.Kind.WRITE: _write,
    wire.Kind.APPEND: _append,
    wire.Kind.REPLACE: _replace,
    wire.Kind.EDIT: _edit,
    wire.Kind.SEARCH: search_files,
    wire.Kind.LIST: list_entries,
    wire.Kind.RESOLVE: _resolve,
}
"""What answers each kind. The event is set when the host no longer wants an answer."""
