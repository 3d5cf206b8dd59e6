"""What the five tools make of the sandbox's answers."""

from typing import Any

import pytest

from runner.answers import RequestFailed, Touched
from runner.model import Outcome, Status, Truncation
from runner.tools import BashTool, EditTool, GrepTool, ReadTool, Tool, ToolLimits, WriteTool
from runner.tools.base import QUOTE_LIMIT, go_quote, seconds
from tests.tools.calling import call
from tests.tools.fake_sandbox import FakeSandbox, found, ran

INPUTS: list[tuple[Tool, dict[str, Any]]] = [
    (ReadTool(), {"path": "/workspace/f"}),
    (WriteTool(), {"path": "/workspace/f", "content": "x"}),
    (EditTool(), {"path": "/workspace/f", "old_string": "a", "new_string": "b"}),
    (GrepTool(), {"pattern": "x", "path": "/workspace"}),
]
WITH_PATHS = pytest.mark.parametrize(
    ("tool", "raw"), INPUTS, ids=lambda item: getattr(item, "name", "")
)


@WITH_PATHS
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "path is required"),
        ("a.txt", 'path must be absolute, got "a.txt"'),
        ("~/x", 'path must be absolute, got "~/x"'),
        ("$HOME", 'path must be absolute, got "$HOME"'),
        ("\\etc", 'path must be absolute, got "\\\\etc"'),
        ("-R/etc", 'path must be absolute, got "-R/etc"'),
        ("/a\0b", "path contains a NUL byte"),
    ],
)
def test_a_path_that_cannot_be_one_never_reaches_the_sandbox(
    tool: Tool, raw: dict[str, Any], path: str, problem: str
) -> None:
    sandbox = FakeSandbox()
    outcome = call(tool, {**raw, "path": path}, sandbox.as_sandbox())
    assert outcome == Outcome(error=f"{tool.name}: {problem}", status=Status.INVALID)
    assert sandbox.asked == []


@WITH_PATHS
def test_a_failure_of_the_sandbox_is_an_error_with_its_words(
    tool: Tool, raw: dict[str, Any]
) -> None:
    sandbox = FakeSandbox(failure=RequestFailed("permission_denied", "permission denied"))
    outcome = call(tool, raw, sandbox.as_sandbox())
    middle = "read: " if tool.name == "edit" else ""
    assert outcome.error == f"{tool.name}: {middle}open {raw['path']}: permission denied"
    assert outcome.status is Status.FAILED
    assert outcome.output == ""


@WITH_PATHS
def test_what_was_judged_is_touched_and_the_path_is_shown_as_it_was_given(
    tool: Tool, raw: dict[str, Any]
) -> None:
    sandbox = FakeSandbox({"/real": b"a"}, search_result=found(b"/workspace/f:1: x\n"))
    outcome = call(tool, raw, sandbox.as_sandbox(), judged="/real")
    assert outcome.error is None
    assert "real" not in outcome.output
    ((_, path, *_, judged),) = sandbox.asked
    assert path == raw["path"]
    assert judged == "judged /real" if tool.name != "grep" else judged["judged"] == "/real"

    sandbox = FakeSandbox(failure=RequestFailed("moved", "a link"))
    outcome = call(tool, raw, sandbox.as_sandbox(), judged="/real")
    assert str(outcome.error).endswith(f"open {raw['path']}: a link")


class TestRead:
    def read(self, content: bytes) -> Outcome:
        return call(ReadTool(), {"path": "/f"}, FakeSandbox({"/f": content}).as_sandbox())

    def test_returns_text_as_it_is(self) -> None:
        text = "\ufeffa\r\nb 世界 🎉 \x1b[2J no newline"
        assert self.read(text.encode()) == Outcome(output=text)

    def test_shows_each_undecodable_byte_and_counts_them(self) -> None:
        outcome = self.read(b"caf\xe9 \xff\xfe\n")
        assert outcome.output == "caf\ufffd \ufffd\ufffd\n"
        assert outcome.details == {"undecodable_bytes": 3}
        assert outcome.status is Status.OK

    def test_does_not_count_a_replacement_character_that_was_there(self) -> None:
        assert self.read("\ufffd".encode()).details == {}

    @pytest.mark.parametrize(("at", "is_error"), [(0, True), (511, True), (512, False)])
    def test_refuses_a_nul_at_the_start_only(self, at: int, is_error: bool) -> None:
        outcome = self.read(b"a" * at + b"\0" + b"z")
        assert (outcome.error == "read: /f does not look like UTF-8 text") is is_error

    def test_asks_for_no_more_than_its_limit(self) -> None:
        sandbox = FakeSandbox({"/f": b""})
        call(
            ReadTool(),
            {"path": "/f"},
            sandbox.as_sandbox(),
            limits=ToolLimits(read_limit_bytes=5),
        )
        assert sandbox.asked == [("read", "/f", 5)]


class TestWrite:
    def test_counts_bytes_not_characters(self) -> None:
        sandbox = FakeSandbox()
        outcome = call(WriteTool(), {"path": "/f", "content": "😀\0\r\n"}, sandbox.as_sandbox())
        assert outcome == Outcome(output="wrote 7 bytes to /f")
        assert sandbox.files == {"/f": "😀\0\r\n".encode()}

    def test_takes_empty_content_but_not_none(self) -> None:
        sandbox = FakeSandbox()
        assert call(WriteTool(), {"path": "/f", "content": ""}, sandbox.as_sandbox()).error is None
        outcome = call(WriteTool(), {"path": "/f"}, sandbox.as_sandbox())
        assert outcome.error == "write: content is required"


class TestEdit:
    def edit(self, old: str, new: str, content: bytes = b"a b a") -> Outcome:
        raw = {"path": "/f", "old_string": old, "new_string": new}
        return call(EditTool(), raw, FakeSandbox({"/f": content}).as_sandbox())

    def test_says_what_became_of_it(self) -> None:
        assert self.edit("b", "x") == Outcome(output="edited /f (1 replacement)")
        assert self.edit("b", "") == Outcome(output="edited /f (1 replacement)")
        assert self.edit("z", "x").error == "edit: old_string not found in /f"
        assert self.edit("a", "x").error == (
            "edit: old_string is not unique in /f (found 2 occurrences);"
            " provide more surrounding context"
        )

    def test_refuses_an_edit_that_changes_nothing(self) -> None:
        assert self.edit("a", "a").error == "edit: old_string and new_string are identical"
        assert self.edit("", "").error == "edit: old_string is required"

    def test_says_which_half_failed(self) -> None:
        raw = {"path": "/f", "old_string": "a", "new_string": "b"}
        full = FakeSandbox(failure=RequestFailed("no_space", "no space left on device"))
        assert call(EditTool(), raw, full.as_sandbox()).error == (
            "edit: write: open /f: no space left on device"
        )


class TestGrep:
    def grep(self, sandbox: FakeSandbox, **raw: Any) -> Outcome:
        return call(
            GrepTool(),
            {"pattern": "x", "path": "/workspace", **raw},
            sandbox.as_sandbox(),
            limits=ToolLimits(grep_max_matches=7, grep_max_file_bytes=8),
        )

    def test_returns_the_rows(self) -> None:
        rows = "/workspace/é:1: x\n"
        assert self.grep(FakeSandbox(search_result=found(rows.encode()))).output == rows

    def test_says_when_there_are_none(self) -> None:
        assert self.grep(FakeSandbox()).output == "no matches"

    def test_says_when_there_are_more(self) -> None:
        sandbox = FakeSandbox(search_result=found(b"/f:1: x\n/f:2: x\n", truncated=True))
        output = "/f:1: x\n/f:2: x\n(truncated at 2 matches)\n"
        assert self.grep(sandbox).output == output

    def test_ends_a_row_that_was_cut(self) -> None:
        sandbox = FakeSandbox(search_result=found(b"/f:1: xxx", matches=1, truncated=True))
        assert self.grep(sandbox).output == "/f:1: xxx\n(truncated at 1 matches)\n"

    def test_counts_what_was_passed_over(self) -> None:
        result = found(
            b"/f:1: \xff\n",
            files=4,
            skipped_large=1,
            skipped_binary=2,
            skipped_unreadable=3,
            skipped_special=5,
            skipped_hidden=6,
        )
        outcome = self.grep(FakeSandbox(search_result=result))
        assert outcome.output == "/f:1: \ufffd\n"
        assert outcome.details == {
            "matches": 1,
            "files": 4,
            "skipped_large": 1,
            "skipped_binary": 2,
            "skipped_unreadable": 3,
            "skipped_special": 5,
            "skipped_hidden": 6,
            "undecodable_bytes": 1,
        }

    def test_passes_its_input_and_limits_on(self) -> None:
        sandbox = FakeSandbox()
        self.grep(sandbox, include="*.py", ignore_case=True)
        options = {
            "ignore_case": True,
            "include": "*.py",
            "max_matches": 7,
            "max_file_bytes": 8,
            "judged": None,
            "hidden": (),
        }
        assert sandbox.asked == [("search", "/workspace", "x", options)]

    def test_hides_what_it_is_told_to(self) -> None:
        sandbox = FakeSandbox()
        raw = {"pattern": "x", "path": "/workspace"}
        call(GrepTool(), raw, sandbox.as_sandbox(), hidden=("a", "b"))
        ((*_, options),) = sandbox.asked
        assert options["hidden"] == ("a", "b")

    @pytest.mark.parametrize(
        ("code", "detail", "error"),
        [
            ("bad_pattern", "missing ): (", "grep: compile pattern: missing ): ("),
            (
                "bad_glob",
                "syntax error in pattern",
                'grep: bad include glob "[\\"": syntax error in pattern',
            ),
            ("cancelled", "cancelled", "grep: open /workspace: cancelled"),
        ],
    )
    def test_says_what_was_wrong(self, code: str, detail: str, error: str) -> None:
        sandbox = FakeSandbox(failure=RequestFailed(code, detail))
        outcome = self.grep(sandbox, include='["')
        assert (outcome.error, outcome.status) == (error, Status.FAILED)

    @pytest.mark.parametrize("code", ["not_found", "not_directory"])
    def test_nothing_matches_where_nothing_is(self, code: str) -> None:
        outcome = self.grep(FakeSandbox(failure=RequestFailed(code, "no such file or directory")))
        assert outcome == Outcome(output="no matches", details={"missing": True})


class TestBash:
    def bash(self, sandbox: FakeSandbox, **options: Any) -> Outcome:
        return call(BashTool(), {"command": "make"}, sandbox.as_sandbox(), **options)

    @pytest.mark.parametrize(
        ("changes", "status", "exit_code", "error"),
        [
            ({}, Status.OK, 0, None),
            ({"exit_code": 7}, Status.FAILED, 7, "bash: exit status 7"),
            ({"exit_code": 255}, Status.FAILED, 255, "bash: exit status 255"),
            ({"exit_code": None, "signal": 9}, Status.FAILED, 137, "bash: signal: killed"),
            ({"exit_code": None, "signal": 15}, Status.FAILED, 143, "bash: signal: terminated"),
            ({"exit_code": None, "signal": 31}, Status.FAILED, 159, "bash: signal: signal 31"),
            (
                {"exit_code": None, "signal": 9, "ended": "timed_out"},
                Status.TIMED_OUT,
                None,
                "bash: timed out after 60s",
            ),
            (
                {"exit_code": None, "signal": 9, "ended": "timed_out", "oom_killed": True},
                Status.TIMED_OUT,
                None,
                "bash: timed out after 60s",
            ),
            (
                {"exit_code": None, "signal": 9, "ended": "cancelled"},
                Status.CANCELLED,
                None,
                "bash: cancelled",
            ),
            (
                {"exit_code": None, "ended": "killed"},
                Status.FAILED,
                137,
                "bash: signal: killed",
            ),
            (
                {"exit_code": 137, "oom_killed": True},
                Status.OOM_KILLED,
                137,
                "bash: out of memory: a process was killed at the session's memory limit"
                " (exit status 137)",
            ),
        ],
    )
    def test_tells_how_the_command_ended(
        self, changes: dict[str, Any], status: Status, exit_code: int | None, error: str | None
    ) -> None:
        outcome = self.bash(FakeSandbox(result=ran(b"partial\n", **changes)))
        assert outcome.output == "partial\n"
        assert (outcome.status, outcome.exit_code, outcome.error) == (status, exit_code, error)

    def test_believes_nothing_that_the_output_says(self) -> None:
        outcome = self.bash(FakeSandbox(result=ran(b"bash: timed out after 60s\n")))
        assert (outcome.status, outcome.error) == (Status.OK, None)

    def test_names_the_calls_own_time_limit(self) -> None:
        sandbox = FakeSandbox(result=ran(ended="timed_out"))
        assert self.bash(sandbox, timeout_s=0.6).error == "bash: timed out after 0.6s"
        assert sandbox.asked[0][:3] == ("run", "make", 0.6)

    def test_passes_its_limits_and_the_environment_on(self) -> None:
        sandbox = FakeSandbox()
        limits = ToolLimits(output_limit_bytes=10, background="kill")
        self.bash(sandbox, limits=limits, environment={"CI": "1"}, watch=(".*/x",))
        options = {"output_limit_bytes": 10, "background": "kill", "watch": (".*/x",)}
        assert sandbox.asked == [("run", "make", 60.0, {"CI": "1"}, options)]

    def test_hands_output_on_as_it_comes(self) -> None:
        pieces = []

        async def take(piece: bytes) -> None:
            pieces.append(piece)

        self.bash(FakeSandbox(result=ran(b"\xff raw")), on_output=take)
        assert pieces == [b"\xff raw"]

    def test_reports_what_runs_on_without_touching_the_output(self) -> None:
        outcome = self.bash(FakeSandbox(result=ran(b"done\n", background=2)))
        assert outcome.output == "done\n"
        assert outcome.background == 2
        assert outcome.details == {"background": 2}

    def test_counts_undecodable_bytes(self) -> None:
        outcome = self.bash(FakeSandbox(result=ran(b"\xff\xfe\0ok")))
        assert outcome.output == "\ufffd\ufffd\0ok"
        assert outcome.details == {"undecodable_bytes": 2}

    @pytest.mark.parametrize(
        ("touched", "details"),
        [
            (Touched(), {}),
            (
                Touched((("/workspace/.envrc", "created"),), 1),
                {"protected": [{"path": "/workspace/.envrc", "change": "created"}]},
            ),
            (
                Touched((("/workspace/.envrc", "removed"),), 3, complete=False),
                {
                    "protected": [{"path": "/workspace/.envrc", "change": "removed"}],
                    "protected_count": 3,
                    "protected_incomplete": True,
                },
            ),
            (Touched(complete=False), {"protected_incomplete": True}),
        ],
    )
    def test_tells_what_became_of_protected_files(
        self, touched: Touched, details: dict[str, Any]
    ) -> None:
        assert self.bash(FakeSandbox(result=ran(b"", touched=touched))).details == details

    def test_says_why_it_could_not_start(self) -> None:
        failure = RequestFailed("too_many_processes", "resource temporarily unavailable")
        outcome = self.bash(FakeSandbox(failure=failure))
        assert outcome.error == "bash: fork/exec /bin/sh: resource temporarily unavailable"
        assert outcome.status is Status.FAILED

    @pytest.mark.parametrize("command", ["a\0b", "\0"])
    def test_refuses_a_command_that_the_system_would_cut(self, command: str) -> None:
        sandbox = FakeSandbox()
        outcome = call(BashTool(), {"command": command}, sandbox.as_sandbox())
        assert outcome.error == "bash: command contains a NUL byte"
        assert sandbox.asked == []

    @pytest.mark.parametrize("command", ["   ", "\n", "# only a comment", ":"])
    def test_runs_a_command_that_does_nothing(self, command: str) -> None:
        sandbox = FakeSandbox()
        assert call(BashTool(), {"command": command}, sandbox.as_sandbox()).error is None
        assert len(sandbox.asked) == 1


class TestLongOutput:
    def render(self, head: bytes, tail: bytes, **changes: Any) -> Outcome:
        fields = {"head_bytes": len(head), "total_bytes": 1000, "total_lines": 50} | changes
        sandbox = FakeSandbox(result=ran(head + tail, **fields))
        return call(BashTool(), {"command": "yes"}, sandbox.as_sandbox())

    def test_has_a_line_for_what_is_missing(self) -> None:
        outcome = self.render(b"a\nb\n", b"y\nz\n", spill_path="/tmp/out", spill_bytes=1000)
        assert outcome.output == (
            "a\nb\n[… 992 bytes (46 lines) left out; the whole output is in /tmp/out …]\ny\nz\n"
        )
        assert outcome.truncated == Truncation(992, 46, "/tmp/out", 1000)

    def test_says_when_not_all_of_it_was_kept(self) -> None:
        outcome = self.render(b"a\n", b"z\n", spill_path="/tmp/out", spill_bytes=300)
        assert "left out; its first 300 bytes are in /tmp/out …]" in outcome.output

    def test_says_nothing_of_a_file_that_is_not_there(self) -> None:
        outcome = self.render(b"a\n", b"z\n")
        assert "\n[… 996 bytes (48 lines) left out …]\n" in outcome.output
        assert outcome.truncated == Truncation(996, 48, None, 0)

    def test_gives_the_line_a_line_of_its_own(self) -> None:
        output = self.render(b"aaa", b"zzz", total_lines=0).output
        assert output == "aaa\n[… 994 bytes (0 lines) left out …]\nzzz"

    def test_may_have_no_head(self) -> None:
        assert self.render(b"", b"z").output == "[… 999 bytes (50 lines) left out …]\nz"

    @pytest.mark.parametrize("character", ["é", "€", "😀"])
    def test_is_never_cut_inside_a_character(self, character: str) -> None:
        data = character.encode()
        for cut in range(1, len(data)):
            outcome = self.render(b"a" + data[:cut], data[cut:] + b"z", total_lines=0)
            assert "\ufffd" not in outcome.output
            assert outcome.output.startswith("a\n[… 998 bytes")
            assert outcome.output.endswith("…]\nz")
            assert outcome.details == {}

    def test_shows_bytes_that_are_no_part_of_a_character(self) -> None:
        outcome = self.render(b"a\xff", b"\xfez")
        assert outcome.output.startswith("a\ufffd\n")
        assert outcome.output.endswith("\n\ufffdz")
        assert outcome.details == {"undecodable_bytes": 2}


class TestWords:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (60, "60s"),
            (60.0, "60s"),
            (0.6, "0.6s"),
            (1.25, "1.25s"),
            (0.1 + 0.2, "0.3s"),
            (90, "90s"),
            (3600, "3600s"),
            (1e6, "1000000s"),
        ],
    )
    def test_of_time_limits(self, value: float, text: str) -> None:
        assert seconds(value) == text

    @pytest.mark.parametrize(
        ("text", "quoted"),
        [
            ("a.txt", '"a.txt"'),
            ('say "x"\\', '"say \\"x\\"\\\\"'),
            ("\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
            ("\0\x1b\x7f", '"\\x00\\x1b\\x7f"'),
            ("é世🎉", '"é世🎉"'),
            ("\x80\u200b\u202e\ufeff", '"\\u0080\\u200b\\u202e\\ufeff"'),
            ("\U000e0001", '"\\U000e0001"'),
            ("\xa0", '"\\u00a0"'),
        ],
    )
    def test_in_quotes(self, text: str, quoted: str) -> None:
        assert go_quote(text) == quoted

    def test_in_quotes_are_not_endless(self) -> None:
        assert go_quote("x" * 10**6) == f'"{"x" * QUOTE_LIMIT}"...'
