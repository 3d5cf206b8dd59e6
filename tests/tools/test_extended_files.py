"""The extended tools for files, in a plain directory: more inputs, and the words for them."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import ConfigurationError, Policy, Registry, Runner, Session, Settings
from runner.answers import RequestFailed
from runner.model import Block, Outcome, Status, Verdict
from runner.testing import FakeEngine
from runner.tools import (
    Effects,
    GrepTool,
    ToolLimits,
    builtin_tools,
    decode,
    effects,
    named_registry,
)
from runner.tools.extended import extended_tools
from runner.tools.extended.read import MAX_DOCUMENT_BYTES, MAX_IMAGE_BYTES
from tests.conformance import reference
from tests.conformance.reference import Case
from tests.helper.local_sandbox import local_sandbox
from tests.tools.calling import call
from tests.tools.fake_sandbox import FakeSandbox

REGISTRY = named_registry("extended")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def do(root: Path, name: str, **raw: Any) -> Outcome:
    """A call of an extended tool; `path` is below the workspace."""
    options = {key: raw.pop(key) for key in ("limits", "hidden", "judged") if key in raw}
    if "path" in raw and not raw["path"].startswith("/"):
        raw["path"] = f"/workspace/{raw['path']}".rstrip("/")
    tool = REGISTRY.get(name)
    assert tool is not None
    return call(tool, raw, local_sandbox(root), **options)


def text(root: Path, name: str, **raw: Any) -> str:
    outcome = do(root, name, **raw)
    assert outcome.error is None
    return outcome.output


def error(root: Path, name: str, **raw: Any) -> str:
    outcome = do(root, name, **raw)
    assert outcome.error is not None
    assert outcome.output == ""
    return outcome.error


# The set.


def test_it_has_the_five_and_their_names_are_taken_by_what_does_the_same() -> None:
    assert {tool.name for tool in builtin_tools()} <= set(REGISTRY.names())
    assert type(REGISTRY.get("grep")) is GrepTool


@pytest.mark.parametrize("tool", builtin_tools(), ids=lambda tool: tool.name)
def test_whatever_one_of_the_five_takes_the_extended_one_takes_too(tool: Any) -> None:
    five = named_registry("rousseau").definitions()
    extended = {one["name"]: one["input_schema"] for one in REGISTRY.definitions()}
    (schema,) = [one["input_schema"] for one in five if one["name"] == tool.name]
    more = extended[tool.name]
    assert more["required"] == schema["required"]
    assert schema["properties"].keys() <= more["properties"].keys()


FILE_CASES = [
    case for case in reference.cases() if case.tool in ("read", "write", "edit") and case.input
]


@pytest.mark.parametrize("case", FILE_CASES, ids=lambda case: case.id)
def test_a_call_as_for_the_five_comes_out_as_theirs(case: Case, tmp_path: Path) -> None:
    outcomes = []
    for number, registry in enumerate((named_registry("rousseau"), REGISTRY)):
        root = tmp_path / str(number)
        root.mkdir()
        reference.lay_out(case, root)
        tool = registry.get(case.tool)
        assert tool is not None
        outcome = call(tool, case.input, local_sandbox(root))
        after = {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
        outcomes.append((outcome.output, outcome.status, outcome.error, after))
    five, extended = outcomes
    assert extended[0] == five[0]
    assert extended[1] == five[1]
    assert extended[3] == five[3]
    if five[2] is None or "unknown property" not in five[2]:
        # More may follow: what else there is to try.
        assert (extended[2] or "").startswith(five[2] or "")


def test_effects_are_told_of_every_tool() -> None:
    told = {tool.name: effects(tool) for tool in (*builtin_tools(), *extended_tools())}
    looks = Effects(read_only=True, destructive=False, idempotent=True, open_world=False)
    for name in ("read", "grep", "glob", "list"):
        assert told[name] == looks
    assert told["write"] == Effects(destructive=True, idempotent=True, open_world=False)
    assert told["edit"] == told["multi_edit"] == Effects(destructive=True, open_world=False)
    assert told["bash"] == Effects(destructive=True, open_world=None)


# read


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ({"limit": 2}, "one\ntwo\n(lines 1-2 of 4; read on with offset 3)"),
        ({"offset": 2, "limit": 2}, "two\nthree\n(lines 2-3 of 4; read on with offset 4)"),
        ({"offset": 3}, "three\nfour\n(lines 3-4 of 4)"),
        ({"offset": 3, "limit": 100}, "three\nfour\n(lines 3-4 of 4)"),
        ({"offset": 1, "limit": 0}, "one\ntwo\nthree\nfour"),
        ({"offset": 4, "limit": 2**63}, "four\n(lines 4-4 of 4)"),
    ],
)
def test_a_range_says_where_it_is_and_how_to_read_on(
    root: Path, raw: dict[str, int], shown: str
) -> None:
    (root / "f").write_text("one\ntwo\nthree\nfour")
    assert text(root, "read", path="f", **raw) == shown


def test_a_range_is_told_in_numbers_too(root: Path) -> None:
    (root / "f").write_bytes(b"one\n\xfftwo\nthree\n")
    assert do(root, "read", path="f", offset=2, limit=1).details == {
        "first": 2,
        "count": 1,
        "lines": 3,
        "size": 15,
        "next_offset": 3,
        "undecodable_bytes": 1,
    }
    assert "next_offset" not in do(root, "read", path="f", offset=3).details


def test_a_range_of_a_file_that_is_too_large_as_a_whole_can_be_read(root: Path) -> None:
    limits = ToolLimits(read_limit_bytes=10)
    (root / "f").write_text("12345\n" * 3)
    assert error(root, "read", path="f", limits=limits) == (
        "read: open /workspace/f: file too large: 18 bytes, the limit is 10;"
        " read a part of it with offset and limit"
    )
    shown = text(root, "read", path="f", offset=2, limits=limits)
    assert shown == "12345\n(lines 2-2 of 3; read on with offset 3)"


def test_a_line_that_is_too_long_is_begun_and_passed(root: Path) -> None:
    (root / "f").write_text("aéaéaéaé\nb\n")
    outcome = do(root, "read", path="f", limit=5, limits=ToolLimits(read_limit_bytes=5))
    assert outcome.output == "aéa\n(line 1 of 2: only its first 4 bytes; read on with offset 2)"
    assert outcome.details["next_offset"] == 2


def test_a_range_behind_the_end_is_an_error_that_says_where_the_end_is(root: Path) -> None:
    (root / "f").write_text("one\n")
    (root / "empty").touch()
    assert error(root, "read", path="f", offset=2) == (
        "read: offset 2 is behind the end of /workspace/f, which has 1 line"
    )
    assert error(root, "read", path="f", offset=10**100).endswith("which has 1 line")
    assert error(root, "read", path="empty", offset=3).endswith("which has 0 lines")
    assert text(root, "read", path="empty", limit=3) == "(the file has 0 lines)"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"offset": 0}, "offset: input should be greater than or equal to 1"),
        ({"limit": -1}, "limit: input should be greater than or equal to 0"),
        ({"offset": "2"}, "offset must be an integer"),
        ({"limit": None}, "limit must be an integer"),
        ({"encoding": "latin-1"}, "encoding: input should be 'utf-8' or 'base64'"),
        (
            {"encoding": "base64", "offset": 2},
            "offset and limit count lines of text; leave them out with base64",
        ),
    ],
)
def test_a_range_that_is_none_is_refused(root: Path, raw: dict[str, Any], message: str) -> None:
    outcome = do(root, "read", path="f", **raw)
    assert (outcome.status, outcome.error) == (Status.INVALID, f"read: {message}")


@pytest.mark.parametrize(
    ("start", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"%PDF-1.7\n", "application/pdf"),
    ],
)
def test_images_and_documents_are_shown(root: Path, start: bytes, media_type: str) -> None:
    content = start + b"more"
    (root / "f.txt").write_bytes(content)
    outcome = do(root, "read", path="f.txt")
    assert outcome.blocks == (Block(media_type, content),)
    assert outcome.output == f"({media_type}, {len(content)} bytes)"
    assert outcome.details == {
        "media_type": media_type,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    as_bytes = do(root, "read", path="f.txt", encoding="base64")
    assert as_bytes.blocks == ()
    assert base64.b64decode(as_bytes.output) == content
    assert "use encoding: base64" in error(root, "read", path="f.txt", limit=5)


@pytest.mark.parametrize(
    ("start", "limit"), [(PNG, MAX_IMAGE_BYTES), (b"%PDF-1.4", MAX_DOCUMENT_BYTES)]
)
def test_what_is_shown_is_bounded(root: Path, start: bytes, limit: int) -> None:
    (root / "f").write_bytes(start)
    os.truncate(root / "f", limit)
    assert len(do(root, "read", path="f").blocks) == 1
    os.truncate(root / "f", limit + 1)
    assert f"of {limit + 1} bytes, the limit is {limit}" in error(root, "read", path="f")


def test_other_binary_files_are_refused_with_the_way_to_read_them(root: Path) -> None:
    (root / "f").write_bytes(b"RIFF\0\0\0\0WAVE")
    words = "does not look like UTF-8 text; to get its bytes use encoding: base64"
    assert error(root, "read", path="f") == f"read: /workspace/f {words}"
    assert error(root, "read", path="f", limit=1) == f"read: /workspace/f {words}"
    outcome = do(root, "read", path="f", encoding="base64")
    assert outcome.output == base64.b64encode(b"RIFF\0\0\0\0WAVE").decode()
    assert outcome.details == {"encoding": "base64", "bytes": 12}


# write


def test_bytes_are_written_as_they_are(root: Path) -> None:
    content = bytes(range(256))
    shown = text(
        root, "write", path="d/f", content=base64.b64encode(content).decode(), encoding="base64"
    )
    assert shown == "wrote 256 bytes to /workspace/d/f"
    assert (root / "d/f").read_bytes() == content
    assert text(root, "write", path="d/f", content="", encoding="base64").startswith("wrote 0 ")
    assert text(root, "write", path="f", content="YQ==").startswith("wrote 4 bytes")


@pytest.mark.parametrize(
    "content", ["YQ", "YQ=", "YQ===", "YQ==\n", " YQ==", "Y Q==", "YR==", "é", "a", "=", "YQ==YQ=="]
)
def test_what_is_not_exactly_base64_is_refused(root: Path, content: str) -> None:
    outcome = do(root, "write", path="f", content=content, encoding="base64")
    assert outcome.status is Status.INVALID
    assert (outcome.error or "").startswith("write: content is not base64: ")
    assert not (root / "f").exists()


# edit and multi_edit


def test_every_occurrence_can_be_replaced(root: Path) -> None:
    (root / "f").write_text("a b a")
    raw = {"path": "f", "new_string": "c", "replace_all": True}
    assert text(root, "edit", old_string="a", **raw) == "edited /workspace/f (2 replacements)"
    assert text(root, "edit", old_string="b", **raw) == "edited /workspace/f (1 replacement)"
    assert (root / "f").read_text() == "c c c"
    assert error(root, "edit", old_string="x", **raw) == (
        "edit: old_string not found in /workspace/f"
    )


def test_several_replacements_are_one_edit(root: Path) -> None:
    (root / "f").write_text("a b a")
    edits = [
        {"old_string": "a", "new_string": "b", "replace_all": True},
        {"old_string": "b b b", "new_string": "done"},
    ]
    outcome = do(root, "multi_edit", path="f", edits=edits)
    assert outcome.output == "edited /workspace/f (3 replacements)"
    assert outcome.details == {"replacements": [2, 1]}
    assert (root / "f").read_text() == "done"


@pytest.mark.parametrize(
    ("old_string", "why"),
    [
        ("x", "old_string not found in /workspace/f"),
        (
            "b",
            "old_string is not unique in /workspace/f (found 2 occurrences);"
            " provide more surrounding context",
        ),
    ],
)
def test_an_edit_that_fails_is_named_and_none_is_made(
    root: Path, old_string: str, why: str
) -> None:
    (root / "f").write_text("a b b")
    edits = [
        {"old_string": "a", "new_string": "c"},
        {"old_string": old_string, "new_string": "d"},
        {"old_string": "c", "new_string": "e"},
    ]
    assert error(root, "multi_edit", path="f", edits=edits) == (
        f"multi_edit: edit 2 of 3: {why}; nothing was written"
    )
    assert (root / "f").read_text() == "a b b"


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([], "edits: list should have at least 1 item"),
        ([{"old_string": "a", "new_string": "b"}] * 1001, "edits: list should have at most 1000"),
        ([{"old_string": "", "new_string": "b"}], "edits[0].old_string is required"),
        (
            [{"old_string": "a", "new_string": "b"}, {"old_string": "a", "new_string": "a"}],
            "edits[1] has an old_string and a new_string that are identical",
        ),
        (
            [{"old_string": "a", "new_string": "b", "all": True}],
            'unknown property "edits[0].all"',
        ),
    ],
)
def test_edits_that_are_none_are_refused(
    root: Path, edits: list[dict[str, Any]], message: str
) -> None:
    outcome = do(root, "multi_edit", path="f", edits=edits)
    assert outcome.status is Status.INVALID
    assert (outcome.error or "").startswith(f"multi_edit: {message}")


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("edit", {"old_string": "a", "new_string": "b", "replace_all": True}),
        ("multi_edit", {"edits": [{"old_string": "a", "new_string": "b"}]}),
    ],
)
@pytest.mark.parametrize(("code", "half"), [("not_found", "read"), ("no_space", "write")])
def test_a_file_that_cannot_be_edited_is_told_as_ever(
    name: str, raw: dict[str, Any], code: str, half: str
) -> None:
    sandbox = FakeSandbox(failure=RequestFailed(code, "no way"))
    tool = REGISTRY.get(name)
    assert tool is not None
    outcome = call(tool, {"path": "/f", **raw}, sandbox.as_sandbox())
    assert outcome.error == f"{name}: {half}: open /f: no way"


# list and glob


@pytest.fixture
def tree(root: Path) -> Path:
    for name in ("src/a.py", "src/deep/b.py", "src/c.txt", ".git/config", "e/f\ng"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (root / "l").symlink_to("src")
    os.mkfifo(root / "p")
    return root


def test_a_listing_shows_what_is_in_the_workspace(tree: Path) -> None:
    assert text(tree, "list") == ".git/\ne/\nl@\np?\nsrc/\n"
    assert text(tree, "list", path="src", depth=2) == (
        "a.py (1 byte)\nc.txt (1 byte)\ndeep/\ndeep/b.py (1 byte)\n"
    )
    (tree / "none").mkdir()
    assert text(tree, "list", path="none") == "(empty)"


def test_a_listing_is_there_for_programs_too(tree: Path) -> None:
    os.utime(tree / "src/a.py", (0, 100.5))
    details = do(tree, "list", path="src").details
    assert details["entries"][0] == (
        {"path": "a.py", "kind": "file", "size": 1, "changed_at": 100.5}
    )
    assert (details["truncated"], details["skipped_hidden"]) == (False, 0)
    assert details["skipped_unreadable"] == 0
    json.dumps(details)


def test_a_name_can_not_pass_for_two_rows(tree: Path) -> None:
    assert text(tree, "list", path="e") == "f\\ng (1 byte)\n"
    assert text(tree, "glob", pattern="e/*") == "/workspace/e/f\\ng\n"


@pytest.mark.parametrize(
    ("raw", "rows"),
    [
        ({"pattern": "**/*.py"}, "/workspace/src/a.py /workspace/src/deep/b.py"),
        ({"pattern": "src/*"}, "/workspace/src/a.py /workspace/src/c.txt /workspace/src/deep/"),
        ({"pattern": "*.{py,txt}", "path": "src"}, "/workspace/src/a.py /workspace/src/c.txt"),
        ({"pattern": "/workspace/src/*.py"}, "/workspace/src/a.py"),
        ({"pattern": "/workspace/src/*.py", "path": "src"}, "/workspace/src/a.py"),
        ({"pattern": ".git/*"}, "/workspace/.git/config"),
        ({"pattern": "[!s]*"}, "/workspace/.git/ /workspace/e/ /workspace/l /workspace/p"),
    ],
)
def test_a_glob_finds_paths(tree: Path, raw: dict[str, str], rows: str) -> None:
    assert text(tree, "glob", **raw).split() == rows.split()


def test_a_glob_that_finds_nothing_says_so(tree: Path) -> None:
    assert text(tree, "glob", pattern="*.rs") == "no matches"


@pytest.mark.parametrize("name", ["list", "glob"])
def test_rows_are_bounded_and_it_is_said(tree: Path, name: str) -> None:
    raw = {"pattern": "src/*"} if name == "glob" else {"path": "src"}
    outcome = do(tree, name, **raw, limits=ToolLimits(list_max_entries=2))
    assert outcome.output.splitlines()[2:] == ["(truncated at 2 entries)"]
    assert outcome.details["truncated"]
    assert len(outcome.details["entries"]) == 2


@pytest.mark.parametrize("name", ["list", "glob"])
def test_what_the_policy_hides_is_left_out(tree: Path, name: str) -> None:
    raw = {"pattern": "**"} if name == "glob" else {"depth": 9}
    outcome = do(tree, name, **raw, hidden=("^/workspace/src/deep(/|$)", r"\.txt$"))
    shown = [entry["path"] for entry in outcome.details["entries"]]
    assert shown == [".git", "e", "e/f\ng", "l", "p", "src", "src/a.py"]
    assert outcome.details["skipped_hidden"] == 3


@pytest.mark.parametrize("name", ["list", "glob"])
def test_what_was_judged_is_listed(tree: Path, name: str) -> None:
    raw = {"pattern": "*.py"} if name == "glob" else {}
    outcome = do(tree, name, path="l", **raw, judged="/workspace/src")
    assert "a.py" in outcome.output
    assert error(tree, name, path="l", **raw, judged="/workspace/l").endswith(
        "open /workspace/l: a link took the place of a file or directory of this path while it"
        " was judged"
    )


def test_what_can_not_be_listed_is_an_error(tree: Path) -> None:
    assert error(tree, "list", path="none") == (
        "list: open /workspace/none: no such file or directory"
    )
    assert error(tree, "glob", pattern="*", path="src/a.py") == (
        "glob: open /workspace/src/a.py: not a directory"
    )
    assert error(tree, "glob", pattern="../*") == (
        'glob: bad pattern "../*": the pattern is for paths below the directory: no .. in it'
    )
    assert error(tree, "glob", pattern="/etc/*").startswith('glob: bad pattern "/etc/*"')


@pytest.mark.parametrize(
    ("name", "raw", "canonical"),
    [
        ("list", {}, '{"path":"/workspace"}'),
        ("list", {"depth": 2}, '{"path":"/workspace","depth":2}'),
        ("list", {"path": "/etc"}, '{"path":"/etc"}'),
        ("glob", {"pattern": "*"}, '{"pattern":"*","path":"/workspace"}'),
    ],
)
def test_a_path_that_was_left_out_is_written_out_for_those_who_judge(
    name: str, raw: dict[str, Any], canonical: str
) -> None:
    tool = REGISTRY.get(name)
    assert tool is not None
    for form in (raw, json.dumps(raw)):
        decoded = decode(tool, form)
        assert decoded.canonical == canonical
        assert json.dumps(decoded.arguments, separators=(",", ":")) == canonical
    assert decode(tool, canonical) == decode(tool, raw)


# Under a policy.

POLICY = Policy.parse(
    """
mode: pattern
allow:
  - {tool: [read, write, edit, grep], path: '^/workspace(/|$)'}
deny:
  - {tool: [read, grep], glob: '/workspace/secrets/**'}
  - {glob: '**/.env'}
"""
)


@pytest.fixture
def session(tmp_path: Path, settings: Settings) -> Iterator[Session]:
    for name in ("a.py", "secrets/key", ".env", ".git/hooks/pre-commit"):
        path = tmp_path / "w" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "w/way-out").symlink_to("/etc")
    (tmp_path / "w/l").symlink_to(".env")
    with (
        Runner(POLICY, settings=settings, engine=FakeEngine(), tools="extended") as runner,
        runner.session(workspace=tmp_path / "w") as session,
    ):
        yield session


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("list", {}),
        ("list", {"path": "/workspace", "depth": 5}),
        ("glob", {"pattern": "**"}),
    ],
)
def test_a_policy_hides_files_from_listings_as_it_does_from_searches(
    session: Session, name: str, raw: dict[str, Any]
) -> None:
    result = session.call(name, raw)
    assert result.status is Status.OK, result.error
    assert [entry["path"] for entry in result.details["entries"]] == [".git", "a.py", "way-out"]
    assert result.details["skipped_hidden"] >= 3


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("list", {"path": "/etc"}),
        ("list", {"path": "/workspace/way-out"}),
        ("glob", {"pattern": "*", "path": "/etc"}),
        ("glob", {"pattern": "*", "path": "/workspace/way-out"}),
        ("list", {"path": "/workspace/secrets"}),
        ("read", {"path": "/workspace/.env", "offset": 1, "limit": 1}),
        ("read", {"path": "/workspace/.env", "encoding": "base64"}),
        ("write", {"path": "/workspace/.env", "content": "", "encoding": "base64"}),
        (
            "multi_edit",
            {
                "path": "/workspace/.git/hooks/pre-commit",
                "edits": [{"old_string": "x", "new_string": "y"}],
            },
        ),
        (
            "edit",
            {
                "path": "/workspace/l",
                "old_string": "x",
                "new_string": "y",
                "replace_all": True,
            },
        ),
    ],
)
def test_rules_for_paths_and_protected_files_hold_for_all_of_them(
    session: Session, name: str, raw: dict[str, Any]
) -> None:
    assert session.call(name, raw).status is Status.DENIED


def test_what_a_rule_allows_runs(session: Session, tmp_path: Path) -> None:
    edits = [{"old_string": "x", "new_string": "y"}]
    result = session.call("multi_edit", {"path": "/workspace/a.py", "edits": edits})
    assert result.status is Status.OK, result.error
    assert (tmp_path / "w/a.py").read_text() == "y"


def test_the_sets_have_names_and_no_others() -> None:
    with pytest.raises(ConfigurationError, match="no set of tools 'all'; there are: rousseau, ext"):
        Runner(tools="all")  # type: ignore[arg-type]
    own = Registry()
    assert Runner(tools=own).tools is own
    assert Runner().tools.names() == Runner(tools="rousseau").tools.names()


def test_the_default_policy_allows_all_of_them_but_the_one_that_leaves_the_container() -> None:
    policy = Policy.named("default")
    denied = {
        tool.name for tool in REGISTRY if policy.decide(tool.name, {}).verdict is not Verdict.ALLOW
    }
    assert denied == {"http_get"}


# Causes, for programs.


@pytest.mark.parametrize(
    ("name", "input", "failure"),
    [
        ("read", {"path": "none"}, {"failure": "not_found"}),
        ("read", {"path": "."}, {"failure": "is_directory"}),
        ("read", {"path": "f/x", "encoding": "base64"}, {"failure": "not_directory"}),
        ("read", {"path": "zeros"}, {"failure": "binary"}),
        ("read", {"path": "f", "offset": 9}, {"failure": "behind_end", "lines": 2}),
        ("write", {"path": ".", "content": "x"}, {"failure": "is_directory"}),
        (
            "edit",
            {"path": "f", "old_string": "none", "new_string": "x"},
            {"failure": "no_match", "occurrences": 0},
        ),
        (
            "edit",
            {"path": "f", "old_string": "a", "new_string": "x"},
            {"failure": "several_matches", "occurrences": 2},
        ),
        (
            "edit",
            {"path": "f", "old_string": "none", "new_string": "x", "replace_all": True},
            {"failure": "no_match", "occurrences": 0},
        ),
        (
            "multi_edit",
            {"path": "f", "edits": [{"old_string": "a", "new_string": "x"}]},
            {"failure": "several_matches", "occurrences": 2},
        ),
        ("glob", {"path": "none/f", "pattern": "*"}, {"failure": "not_found"}),
        ("list", {"path": "f/x"}, {"failure": "not_directory"}),
        ("grep", {"path": "f", "pattern": "("}, {"failure": "bad_pattern"}),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_a_failure_has_a_word_for_programs(
    tmp_path: Path, name: str, input: dict[str, Any], failure: dict[str, Any]
) -> None:
    (tmp_path / "f").write_text("a\na\n")
    (tmp_path / "zeros").write_bytes(bytes(9))

    outcome = do(tmp_path, name, **input)

    assert outcome.status is Status.FAILED
    assert outcome.details == failure
