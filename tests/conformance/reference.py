"""What the reference implementation returned, as cases: lay them out, check what came of them.

The cases are data; how strictly one is compared is in the case. Whoever carries a case out,
in a container or in a plain directory, checks it here.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Case:
    """One call on a fresh workspace."""

    id: str
    tool: str
    input: str
    """The raw JSON text, some of it malformed on purpose."""
    files: Mapping[str, Any]
    expect: Mapping[str, Any]
    compare: str
    max_matches: int | None = None
    timeout_s: float | None = None
    note: str = ""


def cases(tools: Iterable[str] | None = None) -> list[Case]:
    """All cases, or those of some tools."""
    wanted = None if tools is None else set(tools)
    with (DATA / "calls.jsonl").open(encoding="utf-8") as lines:
        everything = [Case(**json.loads(line)) for line in lines]
    return [case for case in everything if wanted is None or case.tool in wanted]


def content(spec: Mapping[str, Any]) -> bytes:
    """The bytes that a case describes."""
    if "parts" in spec:
        data = b"".join(content(part) for part in spec["parts"])
    elif "base64" in spec:
        data = base64.b64decode(spec["base64"])
    else:
        data = spec["text"].encode()
    return data * int(spec.get("repeat", 1))


def lay_out(case: Case, workspace: Path) -> None:
    """Make the files of a case in an empty directory."""
    for name, spec in case.files.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if "link" in spec:
            path.symlink_to(spec["link"])
        elif "dir" in spec:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content(spec))


def snapshot(workspace: Path) -> dict[str, bytes]:
    """The regular files of a workspace."""
    return {
        str(path.relative_to(workspace)): path.read_bytes()
        for path in sorted(workspace.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def check(
    case: Case,
    *,
    output: str,
    error: str | None,
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
) -> None:
    """Assert that a case came out as it has to."""
    if case.id in _NOTES:
        _NOTES[case.id](case, output, error)
    elif case.compare == "is_error_or_exact":
        _COMPARE["is_error" if case.expect["error"] else "exact"](case, output, error)
    else:
        _COMPARE[case.compare](case, output, error)
    if error is not None and case.tool != "bash":
        assert after == before
        return
    for name, spec in case.expect["changed"].items():
        assert after[name] == content(spec)


def _expected_text(case: Case) -> str:
    # What is no UTF-8 is shown as U+FFFD here; the reference returns the bytes.
    return content(case.expect["output"]).decode(errors="replace")


def _exact(case: Case, output: str, error: str | None) -> None:
    assert output == _expected_text(case)
    assert error == case.expect["error"]


def _length(case: Case, output: str, error: str | None) -> None:
    data = output.encode()
    assert len(data) == case.expect["output"]["bytes"]
    assert hashlib.sha256(data).hexdigest() == case.expect["output"]["sha256"]
    assert error == case.expect["error"]


def _contains(case: Case, output: str, error: str | None) -> None:
    for text in case.expect["output"]["contains"]:
        assert text in output
    assert error is None


def _error(case: Case, output: str, error: str | None) -> None:
    assert error is not None
    assert "does not look like UTF-8 text" in error


def _error_class(case: Case, output: str, error: str | None) -> None:
    expected = case.expect["error"]
    assert error is not None
    assert error.partition(":")[0] == expected.partition(":")[0]
    assert error.rpartition(": ")[2] == expected.rpartition(": ")[2]


def _is_error(case: Case, output: str, error: str | None) -> None:
    assert error is not None
    assert error.startswith(f"{case.tool}: ")


def _has_words(*words: str) -> Any:
    def compare(case: Case, output: str, error: str | None) -> None:
        _is_error(case, output, error)
        assert all(word in str(error) for word in words)

    return compare


def _shell_says(*words: str) -> Any:
    def compare(case: Case, output: str, error: str | None) -> None:
        assert all(word in output for word in words)
        assert (error is None) == (case.expect["error"] is None)

    return compare


_COMPARE = {
    "exact": _exact,
    "length": _length,
    "contains": _contains,
    "error": _error,
    "error_class": _error_class,
    "is_error": _is_error,
}

_NOTES = {
    "read-latin1": _exact,
    "write-missing-content": _has_words("content is required"),
    "write-unknown-field": _has_words('unknown property "mode"', "accepted: path, content"),
    "grep-latin1": _exact,
    "grep-symlink-file": _exact,
    "bash-timeout": _exact,
    "bash-43": _shell_says("cd is a"),
    "bash-58": _shell_says("yntax error"),
}
"""Cases whose note says what to compare; a new one without an entry fails."""
