"""Where the command line speaks: standard output is data, standard error is talk.

Everything a person may look at passes here, so here is where control characters become
visible. What goes to a pipe or a file goes as it is.
"""

import asyncio
import codecs
import contextlib
import json
import os
import select
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from runner.logs import Format, Level, configure, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

LINE_BYTES = 65536
"""More than a terminal gives at once."""
PIECE_BYTES = 4096
"""A pipe that is ready takes so much without blocking (PIPE_BUF)."""


class ReaderGone(Exception):
    """Whoever read standard output has closed it."""


@contextlib.contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        # What is still buffered would break the pipe once more when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise ReaderGone from error


class Terminal:
    """Standard output and standard error of this process."""

    def __init__(self) -> None:
        self.quiet = False
        """Say nothing but errors."""
        self.as_json = False
        """Data is JSON."""
        self.is_terminal = sys.stdout.isatty()
        self.errors_are_terminal = sys.stderr.isatty()
        self.can_ask = sys.stdin.isatty() and self.errors_are_terminal
        """Somebody is there who can be asked."""
        self.log_format: Format = "console"
        self.log_level: Level = "warning"
        self._errors: Console | None = None

    # Data.

    def print(self, text: str) -> None:
        """Print lines of data."""
        self._out(f"{visible(text) if self.is_terminal else text}\n")

    def print_event(self, line: str, word: str, *, style: str) -> None:
        """Print a line of a log; on a terminal the first `word` in it stands out."""
        if not self.is_terminal:
            self._out(f"{line}\n")
            return
        from rich.console import Console
        from rich.text import Text

        text = Text(line)
        start = line.find(word)
        text.stylize(style, start, start + len(word))
        with _reader():
            Console(soft_wrap=True).print(text)

    def print_json(self, value: object) -> None:
        """Print a value as one line of JSON: ASCII, so that no terminal can be fooled by it."""
        # DEL is the one control character that JSON leaves as it is. It stands in strings only.
        self._out(json.dumps(value).replace("\x7f", "\\u007f") + "\n")

    def print_text(self, text: str, *, whole_lines: bool = False) -> None:
        """Print a text of any kind: exactly as it is, but safe and in whole lines on a terminal."""
        shown = visible(text) if self.is_terminal else text
        if (whole_lines or self.is_terminal) and text and not text.endswith("\n"):
            shown += "\n"
        self._out(shown)

    def print_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows under their headings: folded to fit a terminal, else one line a row."""
        if not self.is_terminal:
            self._out("".join(f"{line}\n" for line in aligned(columns, rows)))
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        with _reader():
            Console().print(table)

    def _out(self, text: str) -> None:
        with _reader():
            sys.stdout.buffer.write(text.encode(sys.stdout.encoding, "backslashreplace"))
            sys.stdout.buffer.flush()

    # Talk.

    def say(self, text: str) -> None:
        """Say something that need not be read."""
        if not self.quiet:
            self._talk(text, "dim")

    def warn(self, text: str) -> None:
        """Say something that should be read."""
        if not self.quiet:
            self._talk(f"warning: {text}", "yellow")

    def error(self, text: str) -> None:
        """Say why it did not go well. This is said however quiet the rest is."""
        self._talk(text, "red")

    # Questions.

    def tell(self, text: str) -> None:
        """Tell a person what a question is about. This is said however quiet the rest is."""
        sys.stderr.write("".join(f"{line}\n" for line in visible(text).split("\n")))
        sys.stderr.flush()

    def forget_typed(self) -> None:
        """Forget what was typed before there was a question: it was no answer to it."""
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)

    async def ask(self, question: str) -> str | None:
        """Ask for a line, and wait for it without holding up the loop.

        Returns:
            The line without its end; None where there is nobody any more.
        """
        sys.stderr.write(visible(question))
        sys.stderr.flush()
        descriptor = sys.stdin.fileno()
        loop = asyncio.get_running_loop()
        typed = asyncio.Event()
        loop.add_reader(descriptor, typed.set)
        try:
            await typed.wait()
        finally:
            loop.remove_reader(descriptor)
        # A terminal gives a line at a time.
        try:
            line = os.read(descriptor, LINE_BYTES)
        except OSError:  # it was hung up
            line = b""
        if not line:
            sys.stderr.write("\n")
            return None
        return line.decode(errors="replace").rstrip("\r\n")

    def _talk(self, text: str, style: str) -> None:
        line = f"runner: {visible(text)}"
        if not self.errors_are_terminal:
            with contextlib.suppress(OSError):  # nobody listens; the exit status still tells
                sys.stderr.write(f"{line}\n")
            return
        self.errors.print(
            line, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    @property
    def errors(self) -> "Console":
        """Standard error, as a terminal."""
        if self._errors is None:
            from rich.console import Console

            self._errors = Console(stderr=True)
        return self._errors

    def configure_logs(self) -> None:
        """Let log events appear as the options say."""
        configure(self.log_format, self.log_level)


class Progress:
    """The lines of something that takes long: the latest of them on a terminal, else each.

    A context manager; after `stop` a line is only said. Lines may come from any thread.
    """

    def __init__(self, terminal: Terminal, *, opening: str = ""):
        self._terminal = terminal
        self._opening = opening
        """Said before the first line."""
        self._live: Live | None = None
        self._stopped = not terminal.errors_are_terminal

    def show(self, line: str) -> None:
        """Show the next line."""
        if self._terminal.quiet:
            return
        if self._opening:
            opening, self._opening = self._opening, ""
            self._terminal.say(opening)
        if self._stopped:
            self._terminal.say(line)
            return
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        room = max(20, self._terminal.errors.width - 4)
        spinner = Spinner("dots", Text(one_line(line)[:room], style="dim"))
        if self._live is None:
            self._live = Live(
                spinner, console=self._terminal.errors, transient=True, redirect_stdout=False
            )
            self._live.start()
        else:
            self._live.update(spinner)

    def stop(self) -> None:
        """Take the line off the terminal for good."""
        self.pause()
        self._stopped = True

    def pause(self) -> None:
        """Take the line off the terminal until there is another."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


class Stream:
    """Standard output as a sink for a running command's bytes, which never blocks the loop.

    A terminal gets text with its control characters visible; anything else the bytes.
    """

    def __init__(self, terminal: Terminal):
        self._descriptor = sys.stdout.fileno()
        self._visible = terminal.is_terminal
        self._encoding = sys.stdout.encoding
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ready = select.poll()
        self._ready.register(self._descriptor, select.POLLOUT)
        self.characters = 0
        """How many were taken, as the result counts them: bytes that are not UTF-8 are one each."""
        self.in_line = False
        """The last line that was written has no end yet."""

    async def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            BrokenPipeError: Nobody reads any more.
        """
        text = self._decoder.decode(data)
        self.characters += len(text)
        await self._send(self._shown(text) if self._visible else data)

    async def finish(self, rest: str = "") -> None:
        """End it: with what of the text never came as bytes, and on a terminal with a line end.

        Raises:
            BrokenPipeError: Nobody reads any more.
        """
        last = self._decoder.decode(b"", final=True)
        self.characters += len(last)
        await self._send(self._shown(last + rest) if self._visible else rest.encode())
        if self._visible and self.in_line:
            await self._send(b"\n")

    def _shown(self, text: str) -> bytes:
        return visible(text).encode(self._encoding, "backslashreplace")

    async def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not self._ready.poll(0):
                await self._wait()
            rest = rest[os.write(self._descriptor, rest[:PIECE_BYTES]) :]
        if data:
            self.in_line = not data.endswith(b"\n")

    async def _wait(self) -> None:
        """Until there is room. A file is always ready and never comes here."""
        loop = asyncio.get_running_loop()
        room = asyncio.Event()
        loop.add_writer(self._descriptor, room.set)
        try:
            await room.wait()
        finally:
            loop.remove_writer(self._descriptor)


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of text, their cells below each other, two spaces apart. Nothing is cut."""
    table = [list(columns), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def described(facts: Mapping[str, object]) -> list[str]:
    """Facts as lines, `name  value`."""
    width = max((len(name) for name in facts), default=0)
    return [f"{name.ljust(width)}  {value}" for name, value in facts.items()]


def one_line(text: str) -> str:
    """A text of somebody's that can't pass for two."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")
