"""Logs: what a person is shown of text that is not to be trusted, and where events go."""

import io
import json
import logging
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

import runner
from runner import logs
from runner.logs import configure, log, visible

KEPT = {"\n", "\t"}
HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}

# The rest of Default_Ignorable_Code_Point, from DerivedCoreProperties of Unicode 15.
IGNORABLE = frozenset(
    [
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0x2060, 0x2070),
        *range(0xFE00, 0xFE10),
        *range(0xFFF0, 0xFFF9),
        *range(0xE0000, 0xE1000),
    ]
)


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logs, "_write", logs._standard)
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b[1;1Hall tests passed", r"\x1b[2J\x1b[1;1Hall tests passed"),
        ("\x1b]52;c;Y3Vy\x07", r"\x1b]52;c;Y3Vy\x07"),
        ("\x9b31mred", r"\x9b31mred"),
        ("safe\rEVIL", r"safe\rEVIL"),
        ("a\x08\x7f\x00", r"a\x08\x7f\x00"),
        ("access\u202elevel\u2066", r"access\u202elevel\u2066"),
        ("a\u200bb\ufeff\u2060", r"a\u200bb\ufeff\u2060"),
        ("\U000e0041\U000e0100", r"\U000e0041\U000e0100"),
        ("\ud800", r"\ud800"),
        ("line\u2028line\x85", r"line\u2028line\x85"),
        ("a\tb\nc\\x1b", "a\tb\nc\\x1b"),
        ("naïve 你好 😀", "naïve 你好 😀"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_or_hide_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters(codec=None)))
@example("\x1b")
@example("é\x1b")
def test_nothing_hidden_is_left_and_nothing_else_changes(text: str) -> None:
    shown = visible(text)
    assert not any(is_hidden(character) for character in shown)
    assert visible(shown) == shown
    if not any(is_hidden(character) for character in text):
        assert shown == text
    shown.encode()


def is_hidden(character: str) -> bool:
    return character not in KEPT and (
        unicodedata.category(character) in HIDDEN_CATEGORIES or ord(character) in IGNORABLE
    )


def test_every_hidden_character_is_shown_and_no_visible_one_is() -> None:
    # Whole blocks, of which Unicode has filled a part.
    reserved = {*range(0x2060, 0x2070), *range(0xFFF0, 0xFFFC), *range(0x13430, 0x13440)}
    wrong = [
        f"U+{code:04X}"
        for code in range(sys.maxunicode + 1)
        if code not in reserved and (visible(chr(code)) != chr(code)) != is_hidden(chr(code))
    ]
    assert wrong == []


def test_ascii_and_other_text_are_shown_alike() -> None:
    for code in range(128):
        assert visible(chr(code) + "é") == visible(chr(code)) + "é"


def events(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("format_", ["console", "json"])
def test_one_event_is_one_line_whatever_is_in_it(format_: logs.Format) -> None:
    stream = io.StringIO()
    configure(format_, stream=stream)
    evil = '\r\n2030-01-01 error tool.execute\x1b[2J\u2028\u202e\x85\x7f\ud800\t"'
    log.info("tool.denied" + evil, reason=evil, nested={"a": [evil]}, odd=object())
    (line,) = stream.getvalue().split("\n")[:-1]
    assert visible(line) == line
    assert "\t" not in line
    if format_ == "json":
        assert line.isascii()
        assert line.isprintable()
        assert json.loads(line)["reason"] == evil
        assert json.loads(line)["nested"] == {"a": [evil]}


def test_json_lines_carry_name_level_time_and_facts() -> None:
    stream = io.StringIO()
    configure("json", stream=stream)
    log.warning("tool.error", tool="bash", duration_s=0.5)
    event = json.loads(stream.getvalue())
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "tool.error", "level": "warning", "tool": "bash", "duration_s": 0.5}


def test_console_lines_read_from_left_to_right() -> None:
    stream = io.StringIO()
    configure("console", stream=stream)
    log.info("tool.execute", tool="bash", empty="", said='say "hi"', path="a\\b", count=3)
    (line,) = events(stream)
    assert line.split("Z ", 1)[1] == (
        r'info    tool.execute tool=bash empty="" said="say \"hi\"" path="a\\b" count=3'
    )


@pytest.mark.parametrize("name", ["event", "level", "timestamp"])
def test_facts_with_the_names_of_our_own_are_lost_and_not_a_crash(name: str) -> None:
    stream = io.StringIO()
    configure("json", stream=stream)
    log.info("tool.execute", **{name: "mine"})
    event = json.loads(stream.getvalue())
    assert (event["event"], event["level"]) == ("tool.execute", "info")
    assert "mine" not in event.values()


@pytest.mark.parametrize("format_", ["console", "json"])
def test_a_traceback_is_written_and_does_not_pass_for_events(format_: logs.Format) -> None:
    stream = io.StringIO()
    configure(format_, stream=stream)
    try:
        raise ValueError("evil\n2030 error forged\x1b")
    except ValueError:
        log.exception("tool.error", tool="mine")
    first, *rest = events(stream)
    assert "tool.error" in first
    assert "\x1b" not in stream.getvalue()
    assert "ValueError: evil" in stream.getvalue()
    if format_ == "json":
        assert rest == []
    else:
        assert all(line.startswith("    ") for line in rest)


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure("json", "warning", stream)
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    log.info("e")
    assert [json.loads(line)["event"] for line in events(stream)] == ["c", "d"]


def test_the_last_configuration_counts() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("json", stream=first)
    log.info("a")
    configure("console", "debug", second)
    log.debug("b")
    assert len(events(first)) == len(events(second)) == 1


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    log.info("a")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "a"


def test_events_of_the_users_structlog_come_out_alike() -> None:
    stream = io.StringIO()
    configure("json", stream=stream)
    log.info("ours")
    structlog.get_logger().info("theirs", secret="\x7f")
    _, theirs = events(stream)
    assert json.loads(theirs)["event"] == "theirs"
    assert theirs.isprintable()


def test_without_configuration_events_go_to_the_standard_logger(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "runner")
    log.debug("a")
    log.info("tool.denied", reason="a\nb %s \x1b")
    try:
        raise ValueError
    except ValueError:
        log.exception("tool.error")
    assert [(entry.name, entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        ("runner", "INFO", r'tool.denied reason="a\nb %s \u001b"'),
        ("runner", "ERROR", "tool.error"),
    ]
    assert caplog.records[1].exc_info is not None
    assert capsys.readouterr().out == ""


def test_importing_configures_nothing_and_structlog_waits_for_an_event() -> None:
    code = """
import sys
from pathlib import Path
import importlib.util
# The module alone: what the package imports beside it is not the question.
spec = importlib.util.spec_from_file_location("logs", sys.argv[1])
logs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(logs)
logs.configure("json", "warning")
logs.log.info("nobody reads this")
assert "structlog" not in sys.modules
logs.log.warning("somebody does")
assert "structlog" in sys.modules
"""
    path = Path(runner.__file__).parent / "logs.py"
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        env=os.environ,
        check=True,
    )
    assert json.loads(done.stderr)["event"] == "somebody does"
    assert done.stdout == ""
