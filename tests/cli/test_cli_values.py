"""Words of a command line, and what they are taken for."""

import io
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from runner.cli.values import ago, duration_s, moment, size, size_bytes, tool_input, variables
from runner.tools import MAX_INPUT_BYTES


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("10s", 10.0),
        ("2m", 120.0),
        ("8h", 28800.0),
        ("1d", 86400.0),
        (" 2 M ", 120.0),
    ],
)
def test_a_duration_is_read_in_its_unit(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1e3", "1 2", "5y", "٣", "inf", "nan", "1m30s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time"):
        duration_s(text)


def test_a_moment_is_so_long_ago_or_a_date() -> None:
    assert moment("2h") == pytest.approx(time.time() - 7200, abs=60)
    when = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    assert moment("2026-03-01T12:30:00Z") == when.timestamp()
    assert moment(" 2026-03-01 13:30+01:00 ") == when.timestamp()
    assert moment("2026-03-01T12:30") == when.replace(tzinfo=None).timestamp()


@pytest.mark.parametrize("text", ["", "soon", "-2h", "2026-13-01", "12:30"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no moment"):
        moment(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1048576", 1048576),
        ("512m", 512 * 1024**2),
        ("512M", 512 * 1024**2),
        ("64MiB", 64 * 1024**2),
        ("64mb", 64 * 1024**2),
        ("1.5g", 1536 * 1024**2),
        ("2 k", 2048),
        ("7b", 7),
    ],
)
def test_a_size_is_read_in_its_unit(text: str, count: int) -> None:
    assert size_bytes(text) == count


@pytest.mark.parametrize("text", ["", "m", "-5m", "5x", "0x10", "5 m m"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        size_bytes(text)


def test_a_variable_keeps_everything_after_the_first_equals_sign() -> None:
    assert variables(["A=1", "_b=x=y", "EMPTY="]) == {"A": "1", "_b": "x=y", "EMPTY": ""}


@pytest.mark.parametrize("word", ["HOME", "=x", "1A=x", "A-B=x", "A\n=x"])
def test_a_variable_without_name_or_value_is_refused(word: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        variables([word])


def test_input_is_the_word_itself() -> None:
    assert tool_input('{"command":"é"}') == '{"command":"é"}'.encode()


def test_input_that_is_not_utf8_reaches_the_tool_as_the_bytes_that_were_typed() -> None:
    assert tool_input("\udcff") == b"\xff"


def test_input_after_an_at_sign_is_a_files(tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_bytes(b'{"a":1}\n')
    assert tool_input(f"@{file}") == b'{"a":1}\n'


@pytest.mark.parametrize("name", ["missing", "a\0b"])
def test_input_from_a_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter):
        tool_input(f"@{tmp_path}/{name}")


def test_input_from_standard_input_is_read_no_further_than_a_tool_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Standard:
        buffer = io.BytesIO(b"x" * (MAX_INPUT_BYTES + 1000))

    monkeypatch.setattr("sys.stdin", Standard)
    assert len(tool_input("-")) == MAX_INPUT_BYTES + 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0s"), (0.4, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h0m"), (200_000, "2d7h")],
)
def test_a_time_span_is_told_by_its_two_largest_units(seconds: float, words: str) -> None:
    assert ago(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (221 * 1024**2, "221 MiB"),
        (3 * 1024**4, "3.0 TiB"),
    ],
)
def test_a_size_is_told_in_the_unit_that_fits(count: int, words: str) -> None:
    assert size(count) == words
