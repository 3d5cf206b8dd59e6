"""What is printed: bytes into a pipe, safe text onto a terminal, and neither blocks for ever."""

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from runner.app import DATABASE
from runner.cli.terminal import Stream, Terminal, aligned, described, one_line
from runner.store import Store
from tests.cli.conftest import Cli, a_session
from tests.cli.test_cli_commands import a_call


class Output:
    """Stands in for `sys.stdout`, over the end of a pipe."""

    encoding = "utf-8"

    def __init__(self, descriptor: int, *, terminal: bool):
        self.buffer: BinaryIO = os.fdopen(descriptor, "wb", closefd=False)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def fileno(self) -> int:
        return self.buffer.fileno()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    source, sink = os.pipe()
    yield source, sink
    for descriptor in (source, sink):
        try:
            os.close(descriptor)
        except OSError:
            continue  # the test closed it


def terminal_on(sink: int, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> Terminal:
    monkeypatch.setattr(sys, "stdout", Output(sink, terminal=terminal))
    return Terminal()


def test_bytes_go_into_a_pipe_as_they_are(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=False))

    async def scenario() -> None:
        await stream.write(b"\x1b[31m\xff\xfe\0")
        await stream.write("€".encode()[:1])
        await stream.write("€".encode()[1:])
        await stream.finish()

    asyncio.run(scenario())
    assert os.read(source, 1000) == b"\x1b[31m\xff\xfe\0" + "€".encode()


def test_a_terminal_gets_control_characters_as_words_and_a_last_line_end(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=True))

    async def scenario() -> None:
        await stream.write(b"\x1b[31mred\r")
        await stream.write("€".encode()[:2])
        await stream.write("€".encode()[2:] + b"\xff")
        await stream.finish()

    asyncio.run(scenario())
    assert os.read(source, 1000).decode() == "\\x1b[31mred\\r€\ufffd\n"


def test_a_terminal_gets_no_second_line_end(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=True))

    async def scenario() -> None:
        await stream.write(b"line\n")
        await stream.finish()

    asyncio.run(scenario())
    assert os.read(source, 1000) == b"line\n"


def test_characters_are_counted_as_the_result_counts_them(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=False))
    output = b"a\xff\xe2\x82\xac\xe2"

    async def scenario() -> None:
        for index in range(len(output)):
            await stream.write(output[index : index + 1])
        await stream.finish()

    asyncio.run(scenario())
    assert stream.characters == len(output.decode(errors="replace"))


def test_what_never_came_is_written_at_the_end(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=False))
    asyncio.run(stream.finish("rest"))
    assert os.read(source, 1000) == b"rest"


def test_a_slow_reader_stops_the_writer_but_not_the_loop(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=False))
    data = os.urandom(1024**2)

    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        writing = asyncio.create_task(stream.write(data))
        await asyncio.wait([writing], timeout=0.1)
        assert not writing.done()
        received = b""
        while len(received) < len(data):
            received += await loop.run_in_executor(None, os.read, source, 65536)
        await writing
        return received

    assert asyncio.run(scenario()) == data


def test_a_writer_that_waits_for_its_reader_can_be_cancelled(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=False))

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await stream.write(b"x" * 1024**2)

    asyncio.run(scenario())


def test_a_reader_that_has_gone_is_noticed(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    stream = Stream(terminal_on(sink, monkeypatch, terminal=False))
    os.close(source)
    with pytest.raises(BrokenPipeError):
        asyncio.run(stream.write(b"x"))


def test_text_goes_into_a_pipe_unchanged_and_to_a_terminal_in_safe_whole_lines(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    terminal_on(sink, monkeypatch, terminal=False).print_text("a\x1b")
    assert os.read(source, 1000) == b"a\x1b"
    terminal_on(sink, monkeypatch, terminal=True).print_text("a\x1b")
    assert os.read(source, 1000) == b"a\\x1b\n"
    terminal_on(sink, monkeypatch, terminal=True).print_text("")
    terminal_on(sink, monkeypatch, terminal=False).print_text("error", whole_lines=True)
    assert os.read(source, 1000) == b"error\n"


def test_json_is_one_line_of_ascii(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = pipe
    terminal_on(sink, monkeypatch, terminal=False).print_json({"a": "\x1b\x7f\u202e\né"})
    assert os.read(source, 1000) == b'{"a": "\\u001b\\u007f\\u202e\\n\\u00e9"}\n'


def test_a_character_that_the_terminal_has_no_code_for_is_escaped(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    terminal = terminal_on(sink, monkeypatch, terminal=True)
    monkeypatch.setattr(Output, "encoding", "latin-1")
    terminal.print("é€")
    assert os.read(source, 1000) == b"\xe9\\u20ac\n"


def test_talk_is_silenced_but_errors_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    terminal = Terminal()
    terminal.say("said")
    terminal.quiet = True
    terminal.say("not said")
    terminal.warn("not warned")
    terminal.error("an error [with] \x1b[31m markup")
    assert errors.getvalue() == "runner: said\nrunner: an error [with] \\x1b[31m markup\n"


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    long = "x" * 300
    assert aligned(("A", "LONG"), [("1", long), ("three", "")]) == [
        "A      LONG",
        f"1      {long}",
        "three",
    ]


def test_a_cell_that_holds_a_line_end_stays_in_its_row() -> None:
    assert aligned(("A",), [("a\nb\tc\x1b",)]) == ["A", "a\\nb\\tc\\x1b"]
    assert one_line("a\nb") == "a\\nb"


def test_facts_are_lines() -> None:
    assert described({"a": 1, "long": "x"}) == ["a     1", "long  x"]
    assert described({}) == []


# On a real terminal.


def test_a_table_is_folded_to_fit_the_terminal(cli: Cli) -> None:
    status, shown = cli.on_terminal("tools")
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(len(line) for line in plain.splitlines()) <= 60
    assert plain.split() == cli("tools").stdout.split()


def test_a_denied_call_stands_out_in_the_log(cli: Cli) -> None:
    with Store.open(cli.data_dir / DATABASE) as store:
        store.add_session(a_session())
        store.begin_call(a_call(), owner="me")
    _, shown = cli.on_terminal("log", "--last", "1")
    assert "\x1b[31mtool.denied\x1b[0m" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == cli("log", "--last", "1").stdout


def test_talk_is_dim_and_errors_are_red(cli: Cli) -> None:
    _, shown = cli.on_terminal("session", "list")
    assert "\x1b[2mrunner: there are no open sessions\x1b[0m" in shown
    status, shown = cli.on_terminal("session", "show", "s-none")
    assert status == 125
    assert "\x1b[31mrunner: there is no session" in shown


PROGRESS = """
import sys
from runner.cli.terminal import Progress, Terminal
terminal = Terminal()
terminal.quiet = "quiet" in sys.argv
with Progress(terminal, opening="this takes long") as progress:
    for step in range(3):
        progress.show(f"step {step} \x1b[31m" + "x" * 100)
    progress.pause()
    terminal.print("data")
    progress.show("again")
    progress.stop()
    progress.show("afterwards")
"""


def test_progress_is_one_line_of_a_terminal_and_gone_at_the_end(cli: Cli) -> None:
    _, shown = cli.on_terminal(code=PROGRESS)
    assert "runner: this takes long" in shown
    assert re.search(r"step [012] \\x1b\[31mxxx", shown)
    assert "x" * 60 not in shown
    after = shown.rpartition("again")[2]
    assert "\x1b[2K" in after  # the line is erased
    assert "runner: afterwards" in after
    assert "step" not in after


def test_progress_elsewhere_is_a_line_a_step(cli: Cli) -> None:
    command = [sys.executable, "-c", PROGRESS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=cli.environment)
    assert done.stdout == "data\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "runner: this takes long"
    assert [line[:14] for line in lines[1:4]] == [f"runner: step {step}" for step in range(3)]
    assert lines[4:] == ["runner: again", "runner: afterwards"]
    quiet = subprocess.run(
        [*command, "quiet"], capture_output=True, text=True, check=True, env=cli.environment
    )
    assert quiet.stderr == ""


def test_log_events_are_written_as_asked(cli: Cli) -> None:
    code = """
import sys
from runner.cli import main
import runner.app
from runner.logs import log
def events(settings):
    log.info("some.event", fact=1)
    log.debug("more.detail")
    raise SystemExit(0)
runner.app.open_store = events
main(sys.argv[1:])
"""

    def logged(*words: str) -> str:
        command = [sys.executable, "-c", code, *words, "session", "list"]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=cli.environment
        ).stderr

    assert logged() == ""
    assert "some.event fact=1" in logged("-v")
    assert "more.detail" not in logged("-v")
    assert "more.detail" in logged("-vv")
    assert json.loads(logged("-v", "--log-format", "json"))["event"] == "some.event"
    assert json.loads(logged("--log-format", "json", "-v"))["fact"] == 1
