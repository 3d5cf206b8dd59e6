"""Messages of the protocol, for properties that hold for all of them."""

from typing import Any

from hypothesis import strategies as st

from runner.helper import wire
from runner.helper.wire import Kind, Message

BOTH = wire.FROM_HOST | wire.FROM_HELPER
WITH_PAYLOAD = {
    Kind.RUN,
    Kind.WRITE,
    Kind.APPEND,
    Kind.REPLACE,
    Kind.EDIT,
    Kind.INPUT,
    Kind.OUTPUT,
    Kind.ERRORS,
    Kind.CONTENT,
    Kind.PIECE,
    Kind.PAGE,
    Kind.FOUND,
    Kind.LISTED,
    Kind.DATA,
}

# Text as JSON carries it: no half of a surrogate pair.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
counts = st.integers(0, 2**63 - 1)
amounts = st.integers(0, 2**31 - 1) | st.floats(0, 2**31, exclude_max=True, allow_nan=False)
flags = st.booleans()


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=40
)
resolved = st.lists(names.filter(lambda name: name not in (".", "..")), max_size=5).map(
    lambda parts: "/" + "/".join(parts)
)
"""Paths without links, dots or empty names."""
files = resolved.filter(lambda path: path != "/")


def fields_of(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(strategies)


FIELDS: dict[int, st.SearchStrategy[dict[str, Any]]] = {
    Kind.HELLO: fields_of(
        role=st.sampled_from(["host", "helper"]),
        version=counts,
        expires_s=st.none() | amounts,
        idle_s=st.none() | amounts,
        uid=st.none() | counts,
        gid=st.none() | counts,
        shell=st.none() | flags,
        python=st.none() | texts,
        seccomp=st.none() | flags,
    ),
    Kind.RUN: fields_of(
        shell=st.none() | texts,
        argv=st.none() | st.lists(texts, max_size=5),
        cwd=texts,
        env=st.dictionaries(texts, texts, max_size=5),
        stdin=flags,
        input=flags,
        errors=flags,
        user=st.none() | texts,
        deadline_s=st.none() | amounts,
        spill_after_bytes=counts,
        spill_limit_bytes=counts,
        background=st.sampled_from(["keep", "kill"]),
        watch=flags,
    ),
    Kind.CREDIT: fields_of(bytes=counts),
    Kind.READ: fields_of(path=texts, judged=st.none() | resolved, limit_bytes=counts),
    Kind.WRITE: fields_of(path=texts, judged=st.none() | resolved),
    Kind.REPLACE: fields_of(
        path=texts, judged=st.none() | resolved, old_bytes=counts, limit_bytes=counts
    ),
    Kind.INPUT: fields_of(end=flags),
    Kind.SIGNAL: fields_of(signal=st.integers(1, 127)),
    Kind.PART: fields_of(path=texts, judged=st.none() | resolved, start=counts, limit_bytes=counts),
    Kind.LINES: fields_of(
        path=texts,
        judged=st.none() | resolved,
        first=counts,
        count=counts,
        limit_bytes=counts,
    ),
    Kind.APPEND: fields_of(path=texts, judged=st.none() | resolved),
    Kind.EDIT: fields_of(
        path=texts,
        judged=st.none() | resolved,
        edits=st.lists(st.tuples(counts, counts, flags).map(list), min_size=1, max_size=5),
        limit_bytes=counts,
    ),
    Kind.LIST: fields_of(
        path=texts,
        judged=st.none() | resolved,
        hidden=st.lists(texts, max_size=5),
        glob=texts,
        depth=counts,
        max_entries=counts,
    ),
    Kind.LISTEN: fields_of(port=st.integers(1, 2**16 - 1)),
    Kind.RESOLVE: fields_of(path=texts),
    Kind.SEARCH: fields_of(
        path=texts,
        judged=st.none() | resolved,
        hidden=st.lists(texts, max_size=5),
        pattern=texts,
        ignore_case=flags,
        include=texts,
        max_matches=counts,
        max_file_bytes=counts,
    ),
    Kind.RAN: fields_of(
        exit_code=st.none() | st.integers(0, 255),
        signal=st.none() | st.integers(1, 127),
        ended=st.sampled_from(["exited", "cancelled", "deadline", "killed"]),
        background=counts,
        oom_killed=flags,
        output_bytes=counts,
        errors_bytes=counts,
        spill_path=st.none() | texts,
        spill_bytes=counts,
        touched=st.lists(
            st.tuples(files, st.sampled_from(sorted(wire.CHANGES))).map(list), max_size=5
        ),
        touched_count=counts,
        touched_complete=st.none() | flags,
    ),
    Kind.TAKEN: fields_of(bytes=counts),
    Kind.TOOK: fields_of(bytes=counts),
    Kind.PIECE: fields_of(size=counts),
    Kind.PAGE: fields_of(size=counts, lines=counts, first=counts, count=counts, binary=flags),
    Kind.EDITED: fields_of(counts=st.lists(counts, max_size=5), written=flags),
    Kind.LISTED: fields_of(
        entries=counts, truncated=flags, skipped_unreadable=counts, skipped_hidden=counts
    ),
    Kind.WROTE: fields_of(bytes=counts),
    Kind.REPLACED: fields_of(occurrences=counts),
    Kind.FOUND: fields_of(
        matches=counts,
        truncated=flags,
        files=counts,
        skipped_large=counts,
        skipped_binary=counts,
        skipped_unreadable=counts,
        skipped_special=counts,
        skipped_hidden=counts,
    ),
    Kind.RESOLVED: fields_of(path=resolved),
    Kind.WATCH: fields_of(root=resolved, patterns=st.lists(texts, max_size=5)),
    Kind.WATCHED: fields_of(directories=counts, complete=flags),
    Kind.FAILED: fields_of(code=st.sampled_from(sorted(wire.FAILURES)), detail=texts),
}


@st.composite
def messages(draw: st.DrawFn, kinds: frozenset[int] = BOTH) -> Message:
    """Any message of these kinds."""
    kind = draw(st.sampled_from(sorted(kinds)))
    payload = draw(st.binary(max_size=200)) if kind in WITH_PAYLOAD else b""
    fields = draw(FIELDS.get(kind, st.just({})))
    return Message(kind, draw(calls(kind)), fields, payload)


def calls(kind: int) -> st.SearchStrategy[int]:
    """Numbers that a frame of this kind may bear: those of tunnels, or those of requests."""
    if kind in wire.TUNNELLED:
        return st.integers(wire.TUNNEL_BASE, 2**32 - 1)
    return st.integers(0, wire.TUNNEL_BASE - 1)
