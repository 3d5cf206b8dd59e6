"""Measures calls against the plain host and `docker exec`, all in one run.

    python benchmarks/run.py [--quick] [--write docs/benchmarks.md]

Every row is a ratio of medians taken in turns (A B C A B C …), since machines are noisy:
quote the ratios, not the times. Nothing here is a test; a goal that is missed is shown as
missed.
"""

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from runner import AsyncRunner, AsyncSession, Runner, Session, Settings, __version__
from runner.docker_engine import DockerEngine
from runner.images import DEFAULT_IMAGE
from runner.policy import Policy

MIB = 1024**2
CARRIERS = ("socket", "attach")


@dataclass
class Row:
    """One measured thing: a value by column, and what it is to reach."""

    name: str
    unit: str
    values: dict[str, float] = field(default_factory=dict)
    goals: list[str] = field(default_factory=list)
    """Sentences, each ending in `met` or `missed`."""

    def goal(self, text: str, met: bool) -> None:
        """Note a goal and whether it was reached."""
        self.goals.append(f"{text}: {'met' if met else 'MISSED'}")


Timed = Callable[[], Any]


def timed(action: Timed) -> float:
    """Seconds that an action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


async def atimed(action: Callable[[], Awaitable[Any]]) -> float:
    """Seconds that an asynchronous action takes."""
    started = time.perf_counter()
    await action()
    return time.perf_counter() - started


def host(command: str, *, stdin: bytes | None = None) -> bytes:
    """Run a shell line on the plain host, output and errors in one stream."""
    return subprocess.run(
        ["/bin/sh", "-c", command],
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    ).stdout


@dataclass(frozen=True)
class Container:
    """A plain container of the session image, for `docker exec`."""

    id: str

    @classmethod
    def start(cls, workspace: Path, *more: str) -> "Container":
        """`docker run` as tightly as a session is run."""
        locked = "--network=none --read-only --cap-drop=ALL --security-opt=no-new-privileges"
        limits = "--memory=512m --memory-swap=512m --cpus=1 --pids-limit=256 --log-driver=none"
        found = subprocess.run(
            [
                "docker",
                "run",
                "-d",
                *locked.split(),
                *limits.split(),
                "--tmpfs=/tmp",
                "-v",
                f"{workspace}:/workspace",
                "-w",
                "/workspace",
                *more,
                DEFAULT_IMAGE,
                "sleep",
                "infinity",
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        return cls(found.stdout.strip())

    def exec(self, command: str, *, stdin: bytes | None = None) -> bytes:
        """`docker exec` of a shell line."""
        interactive = ["-i"] if stdin is not None else []
        return subprocess.run(
            ["docker", "exec", *interactive, self.id, "/bin/sh", "-c", command],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout

    def remove(self) -> None:
        """End it."""
        subprocess.run(["docker", "rm", "-f", self.id], check=True, capture_output=True)


class Bench:
    """All measurements, on one set of sessions."""

    def __init__(self, settings: Settings, *, quick: bool):
        self.settings = settings
        self.scale = 0.2 if quick else 1.0
        self.rows: list[Row] = []
        self.workspace = Path(tempfile.mkdtemp(prefix="bench-"))
        if os.getuid() == 0:
            os.chown(self.workspace, 65532, 65532)
        self.console = Console(stderr=True)

    def rounds(self, count: int) -> int:
        """Fewer with --quick."""
        return max(3, int(count * self.scale))

    async def run(self) -> None:
        """Measure everything."""
        container = Container.start(self.workspace, f"--user={self._owner()}")
        try:
            async with AsyncRunner("default", settings=self.settings) as runner:
                sessions = {
                    carrier: await runner.open_session(carrier=carrier, workspace=self.workspace)
                    for carrier in CARRIERS
                }
                await self.echo(container, sessions)
                await self.parts(sessions)
                await self.files(container, sessions)
                await self.output(container, sessions)
                await self.small_writes(sessions)
                await self.grep(container, sessions)
                await self.deadline(sessions)
                await self.many(runner)
                await self.cold(runner)
                await self.idle_memory(runner)
                for session in sessions.values():
                    await session.close()
            self.startup()
            self.decisions()
        finally:
            container.remove()
            shutil.rmtree(self.workspace)

    def _owner(self) -> str:
        owner = self.workspace.stat()
        return f"{owner.st_uid}:{owner.st_gid}"

    def _note(self, row: Row) -> Row:
        self.rows.append(row)
        values = ", ".join(f"{name} {value:.4g}" for name, value in row.values.items())
        self.console.print(f"{row.name} ({row.unit}): {values}", highlight=False)
        for goal in row.goals:
            self.console.print(f"    {goal}", highlight=False)
        return row

    async def echo(self, container: Container, sessions: dict[str, AsyncSession]) -> None:
        """A shell command that does nothing, in a live session."""
        command = "echo hi"
        samples: dict[str, list[float]] = {}
        with self._synchronous() as faces:
            for _ in range(self.rounds(300)):
                samples.setdefault("host", []).append(timed(lambda: host(command)))
                for carrier, session in sessions.items():
                    samples.setdefault(carrier, []).append(
                        await atimed(partial(session.bash, command))
                    )
                for carrier, face in faces.items():
                    samples.setdefault(f"{carrier}, sync", []).append(
                        timed(partial(face.bash, command))
                    )
            for _ in range(self.rounds(30)):
                samples.setdefault("docker exec", []).append(timed(lambda: container.exec(command)))
        row = Row("`bash` call `echo hi`", "ms", medians(samples, 1e3))
        exec_ms = row.values["docker exec"]
        for carrier, factor in (("socket", 50), ("attach", 40)):
            ratio = exec_ms / row.values[carrier]
            row.goal(
                f"{carrier}: {ratio:.0f} times as fast as docker exec, goal {factor}",
                ratio >= factor,
            )
        ratio = row.values["socket"] / row.values["host"]
        row.goal(f"socket: {ratio:.2f} times the plain host, goal 2", ratio <= 2)
        self._note(row)

    async def parts(self, sessions: dict[str, AsyncSession]) -> None:
        """What a call's time is made of."""
        ping: dict[str, list[float]] = {}
        run: dict[str, list[float]] = {}
        start: dict[str, list[float]] = {}
        for _ in range(self.rounds(300)):
            start.setdefault("host", []).append(timed(partial(subprocess.run, ["/bin/true"])))
            for carrier, session in sessions.items():
                sandbox = await session.sandbox()
                ping.setdefault(carrier, []).append(await atimed(sandbox.ping))
                run.setdefault(carrier, []).append(
                    await atimed(partial(sandbox.run, "echo hi", deadline_s=10))
                )
                start.setdefault(carrier, []).append(
                    await atimed(partial(sandbox.run, ["/bin/true"], deadline_s=10))
                )
        self._note(Row("of it: a frame to the helper and back", "ms", medians(ping, 1e3)))
        self._note(Row("of it: without schema, policy, record", "ms", medians(run, 1e3)))
        self._note(Row("for comparison: `/bin/true`, no shell", "ms", medians(start, 1e3)))

    def _synchronous(self) -> "Faces":
        return Faces(self.settings, self.workspace)

    async def files(self, container: Container, sessions: dict[str, AsyncSession]) -> None:
        """Write and read 1 MiB."""
        content = "x" * MIB
        path = f"{self.workspace}/of-the-host"
        writes: dict[str, list[float]] = {}
        reads: dict[str, list[float]] = {}
        for _ in range(self.rounds(20)):
            writes.setdefault("host", []).append(timed(lambda: Path(path).write_text(content)))
            reads.setdefault("host", []).append(timed(lambda: Path(path).read_text()))
            for carrier, session in sessions.items():
                writes.setdefault(carrier, []).append(
                    await atimed(partial(session.write, "/workspace/f", content))
                )
                reads.setdefault(carrier, []).append(
                    await atimed(partial(session.read, "/workspace/f"))
                )
            writes.setdefault("docker exec", []).append(
                timed(lambda: container.exec("cat > /workspace/of-exec", stdin=content.encode()))
            )
            reads.setdefault("docker exec", []).append(
                timed(lambda: container.exec("cat /workspace/of-exec"))
            )
        for name, samples in (("write 1 MiB", writes), ("read 1 MiB", reads)):
            row = Row(name, "ms", medians(samples, 1e3))
            for carrier, factor in (("socket", 20), ("attach", 10)):
                ratio = row.values["docker exec"] / row.values[carrier]
                row.goal(
                    f"{carrier}: {ratio:.0f} times as fast as docker exec, goal {factor}",
                    ratio >= factor,
                )
            self._note(row)

    async def output(self, container: Container, sessions: dict[str, AsyncSession]) -> None:
        """A command that writes much."""
        for size in (1, 10, 100):
            command = f"head -c {size * MIB} /dev/zero"
            samples: dict[str, list[float]] = {}
            before = resident_bytes()
            for _ in range(self.rounds(10)):
                samples.setdefault("host", []).append(timed(lambda: host(command)))
                for carrier, session in sessions.items():
                    samples.setdefault(carrier, []).append(
                        await atimed(partial(session.bash, command))
                    )
                if size <= 10:
                    samples.setdefault("docker exec", []).append(
                        timed(lambda: container.exec(command))
                    )
            row = Row(f"{size} MiB of output", "ms", medians(samples, 1e3))
            if size == 10:
                ratio = row.values["socket"] / row.values["host"]
                row.goal(f"socket: {ratio:.1f} times the plain host, goal 3", ratio <= 3)
                for session in sessions.values():
                    before = resident_bytes()
                    await session.bash(command)
                    grown = (resident_bytes() - before) / MIB
                    row.goal(f"host memory grows by {max(grown, 0):.1f} MiB, goal 16", grown < 16)
            if size == 100:
                ten = self.rows[-1].values["socket"]
                ratio = row.values["socket"] / ten
                row.goal(f"socket: {ratio:.1f} times the time of 10 MiB, goal 13", ratio <= 13)
            self._note(row)

    async def small_writes(self, sessions: dict[str, AsyncSession]) -> None:
        """Many writes of one byte."""
        rows = []
        for count in (30_000, 300_000):
            command = f"python3 -c \"import os\nfor _ in range({count}): os.write(1, b'x')\""
            samples: dict[str, list[float]] = {}
            for _ in range(self.rounds(3)):
                samples.setdefault("host", []).append(timed(lambda: host(command)))
                for carrier, session in sessions.items():
                    samples.setdefault(carrier, []).append(
                        await atimed(partial(session.bash, command))
                    )
            rows.append(Row(f"{count:,} writes of one byte", "ms", medians(samples, 1e3)))
        ratio = rows[1].values["socket"] / rows[0].values["socket"]
        rows[1].goal(f"socket: {ratio:.1f} times the time of a tenth, goal 13", ratio <= 13)
        for row in rows:
            self._note(row)

    async def grep(self, container: Container, sessions: dict[str, AsyncSession]) -> None:
        """Search 2,000 files, 20 MB."""
        tree = self.workspace / "tree"
        line = "the quick brown fox jumps over the lazy dog, and then it does so again\n"
        for number in range(2000):
            directory = tree / f"d{number % 40}"
            directory.mkdir(parents=True, exist_ok=True)
            text = line * (10_000 // len(line))
            if number % 50 == 0:
                text += "a needle in the hay\n"
            (directory / f"f{number}.txt").write_text(text)
        samples: dict[str, list[float]] = {}
        program = shutil.which("rg")
        for _ in range(self.rounds(10)):
            if program:
                samples.setdefault("host", []).append(timed(lambda: host(f"rg -n needle {tree}")))
            samples.setdefault("docker exec", []).append(
                timed(lambda: container.exec("rg -n needle /workspace/tree"))
            )
            for carrier, session in sessions.items():
                samples.setdefault(carrier, []).append(
                    await atimed(partial(session.grep, "needle", "/workspace/tree"))
                )
        row = Row("`grep` over 2,000 files, 20 MB (others: `rg`)", "ms", medians(samples, 1e3))
        for carrier in sessions:
            ratio = row.values[carrier] / row.values["docker exec"]
            row.goal(f"{carrier}: {ratio:.2f} times docker exec rg, goal 1", ratio <= 1)
        self._note(row)
        shutil.rmtree(tree)

    async def deadline(self, sessions: dict[str, AsyncSession]) -> None:
        """From a deadline to the result, with a tree that tries to get away."""
        command = (
            "setsid sleep 299 & (setsid sh -c 'sleep 299 & exec sleep 299' &);"
            " trap '' TERM; sleep 299"
        )
        samples: dict[str, list[float]] = {}
        left = 0
        limit_s = 0.3
        for _ in range(self.rounds(10)):
            for carrier, session in sessions.items():
                took = await atimed(partial(session.bash, command, timeout_s=limit_s))
                samples.setdefault(carrier, []).append(took - limit_s)
                found = await session.bash("ps -eo args | grep -c '^sleep 299'")
                left += int(found.output)
        row = Row("from a deadline to the result", "ms", medians(samples, 1e3))
        for carrier in sessions:
            row.goal(f"{carrier}: under 100 ms", row.values[carrier] < 100)
        row.goal(f"{left} processes left", left == 0)
        self._note(row)

    async def many(self, runner: AsyncRunner) -> None:
        """Calls a second that eight sessions reach together."""
        seconds = 4 * max(self.scale, 0.5)
        row = Row("eight sessions at once", "calls/s")
        containers = [Container.start(self.workspace, f"--user={self._owner()}") for _ in range(8)]
        try:
            row.values["docker exec"] = await _rate(
                [partial(asyncio.to_thread, one.exec, "echo hi") for one in containers],
                seconds,
            )
        finally:
            for one in containers:
                one.remove()
        row.values["host"] = await _rate(
            [partial(asyncio.to_thread, host, "echo hi") for _ in range(8)], seconds
        )
        for carrier in CARRIERS:
            sessions = [await runner.open_session(carrier=carrier) for _ in range(8)]
            row.values[carrier] = await _rate(
                [partial(one.bash, "echo hi") for one in sessions], seconds
            )
            for session in sessions:
                await session.close()
        for carrier in CARRIERS:
            ratio = row.values[carrier] / row.values["docker exec"]
            row.goal(f"{carrier}: {ratio:.0f} times docker exec, goal 30", ratio >= 30)
        self._note(row)

    async def cold(self, runner: AsyncRunner) -> None:
        """From nothing to the first answer."""
        samples: dict[str, list[float]] = {}
        for _ in range(self.rounds(10)):

            def docker() -> None:
                started.append(Container.start(self.workspace))
                started[-1].exec("echo hi")

            async def ours(carrier: str) -> None:
                opened.append(await runner.open_session(carrier=carrier, workspace=self.workspace))
                await opened[-1].bash("echo hi")

            started: list[Container] = []
            opened: list[AsyncSession] = []
            samples.setdefault("docker exec", []).append(timed(docker))
            for carrier in CARRIERS:
                samples.setdefault(carrier, []).append(await atimed(partial(ours, carrier)))
            started[0].remove()
            for session in opened:
                await session.close()
        row = Row("a new session to its first answer", "ms", medians(samples, 1e3))
        for carrier in CARRIERS:
            ratio = row.values[carrier] / row.values["docker exec"]
            row.goal(f"{carrier}: {ratio:.2f} times docker run and exec, goal 1.15", ratio <= 1.15)
        self._note(row)

    async def idle_memory(self, runner: AsyncRunner) -> None:
        """What a session costs while nothing happens."""
        count = 4
        engine = DockerEngine(self.settings.docker_host)
        containers = [Container.start(self.workspace) for _ in range(count)]
        row = Row("an idle session's memory", "MB")
        try:
            row.values["docker exec"] = statistics.median(
                [await _memory(engine, one.id) for one in containers]
            )
            for carrier in CARRIERS:
                sessions = [await runner.open_session(carrier=carrier) for _ in range(count)]
                await asyncio.gather(*(session.bash("echo hi") for session in sessions))
                row.values[carrier] = statistics.median(
                    [await _memory(engine, one.info.container_id or "") for one in sessions]
                )
                for session in sessions:
                    await session.close()
        finally:
            for one in containers:
                one.remove()
            await engine.close()
        for carrier in CARRIERS:
            more = row.values[carrier] - row.values["docker exec"]
            row.goal(f"{carrier}: {more:.1f} MB over an empty container, goal 10", more < 10)
        self._note(row)

    def startup(self) -> None:
        """The command line's own start."""
        commands = {
            "`python -c ''`": ["-c", ""],
            "`runner --version`": ["-m", "runner", "--version"],
            "`runner --help`": ["-m", "runner", "--help"],
        }
        samples: dict[str, list[float]] = {}
        for _ in range(self.rounds(20)):
            for name, arguments in commands.items():
                command = [sys.executable, *arguments]
                action = partial(subprocess.run, command, check=True, capture_output=True)
                samples.setdefault(name, []).append(timed(action))
        for name, value in medians(samples, 1e3).items():
            self._note(Row(name, "ms", {"host": value}))

    def decisions(self) -> None:
        """What a policy takes to decide. Each script is another, as nothing is to be remembered."""
        policy = Policy.named("developer")
        samples: dict[str, list[float]] = {}
        slowest: dict[str, list[float]] = {}
        for number in range(self.rounds(200)):
            for tool, arguments in usual_calls(number):
                samples.setdefault("host", []).append(
                    timed(partial(policy.decide, tool, arguments))
                )
        for number in range(self.rounds(20)):
            for kind, script in long_scripts(number).items():
                assert len(script) == 10_000
                arguments = {"command": script}
                slowest.setdefault(kind, []).append(
                    timed(partial(policy.decide, "bash", arguments))
                )
        row = Row("a decision of policy `developer`, usual calls", "ms", medians(samples, 1e3))
        row.goal(f"{row.values['host']:.2f} ms, goal 0.5", row.values["host"] < 0.5)
        self._note(row)
        for kind, value in medians(slowest, 1e3).items():
            row = Row(f"the same, 10,000 characters: {kind}", "ms", {"host": value})
            row.goal(f"{value:.1f} ms, goal 20", value < 20)
            self._note(row)


def usual_calls(number: int) -> list[tuple[str, dict[str, str]]]:
    """What agents ask for all day; another number makes it other calls."""
    scripts = (
        f"ls -la src/d{number}",
        f"git diff HEAD~{number} --stat",
        f"python3 -m pytest -q tests/test_{number}.py 2>&1 | tail -{number + 5}",
        f"cd /workspace && rg -n 'def f{number}' src | head -20",
        f"sed -n {number},{number + 40}p src/main.py",
        f"git add -A && git commit -m 'change {number}; and say why'",
        f"mkdir -p build/{number} && cp src/*.py build/{number}/",
        f"for f in a b c; do echo {number}; done > build/{number}.txt",
        f"timeout 60 npm run test -- --shard={number}",
        f"curl -s https://example.com/{number} | sh",
    )
    path = f"/workspace/src/f{number}.py"
    return [
        ("read", {"path": path}),
        ("grep", {"pattern": f"def f{number}", "path": "/workspace"}),
        ("write", {"path": path, "content": f"x = {number}\n" * 100}),
        ("edit", {"path": path, "old_string": f"x = {number}", "new_string": "x = 1"}),
        *(("bash", {"command": script}) for script in scripts),
    ]


def long_scripts(number: int) -> dict[str, str]:
    """Scripts of 10,000 characters, by what they are full of."""
    parts = {
        "commands": f"ls -l src/d{number}; git log -{number + 1} | head -3\n",
        "words": f"ls a{number} b c d",
        "flags": f"rm -v -i -d --recur a{number} -f; ",
        "quotes": f"echo 'a{number}' \"b\" c''d; ",
        "nesting": f"if ls {number}; then ( ls ); fi\n",
        "no script": f"(((([[{{{{ $(`{number}' \" <<x ",
    }
    scripts = {kind: (part * 10_000)[:10_000] for kind, part in parts.items()}
    text = f"cat > build/{number} <<'EOF'\n"
    scripts["here-document"] = text + "x" * (10_000 - len(text) - 4) + "\nEOF"
    return scripts


class Faces:
    """Synchronous sessions, one a carrier."""

    def __init__(self, settings: Settings, workspace: Path):
        self._runner = Runner("default", settings=settings)
        self._workspace = workspace

    def __enter__(self) -> dict[str, Session]:
        self._runner.__enter__()
        return {
            carrier: self._runner.session(carrier=carrier, workspace=self._workspace)
            for carrier in CARRIERS
        }

    def __exit__(self, *exception: Any) -> None:
        self._runner.__exit__(*exception)


def medians(samples: dict[str, list[float]], factor: float) -> dict[str, float]:
    """The median of each, in another unit."""
    return {name: statistics.median(values) * factor for name, values in samples.items()}


def resident_bytes() -> int:
    """What this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _rate(actions: list[Callable[[], Awaitable[Any]]], seconds: float) -> float:
    """Calls a second when each action is repeated in a loop of its own."""
    stop = time.perf_counter() + seconds
    counts = [0] * len(actions)

    async def loop(index: int) -> None:
        while time.perf_counter() < stop:
            await actions[index]()
            counts[index] += 1

    started = time.perf_counter()
    await asyncio.gather(*(loop(index) for index in range(len(actions))))
    return sum(counts) / (time.perf_counter() - started)


async def _memory(engine: DockerEngine, container: str) -> float:
    """Memory that a container holds, in MB, without page cache that can be dropped."""
    stats = await asyncio.to_thread(engine._client().stats, container, stream=False)
    memory = stats["memory_stats"]
    details = memory["stats"]
    cache = details.get("total_inactive_file", details.get("inactive_file", 0))
    return float(memory["usage"] - cache) / 1e6


COLUMNS = ("host", "docker exec", "socket", "attach", "socket, sync", "attach, sync")


def show(rows: list[Row]) -> Table:
    """The rows as a table for a terminal."""
    table = Table(title="medians of one run")
    table.add_column("")
    for name in (*COLUMNS, "unit"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row.values[name]:.4g}" if name in row.values else "" for name in COLUMNS]
        table.add_row(row.name, *cells, row.unit)
    return table


def document(rows: list[Row], engine: str) -> str:
    """The rows as a page."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. All columns were measured in one run, in turns, on one",
        "machine; compare the columns, not the times. *host* is the same command as a plain",
        "subprocess, *docker exec* the Docker command line on an equally locked container,",
        "*socket* and *attach* are this package's asynchronous face over its two carriers, and",
        "*sync* its synchronous face.",
        "",
        f"runner {__version__}, Python {platform.python_version()}, Linux {platform.release()},",
        f"{os.cpu_count()} processors, {engine}, {time.strftime('%Y-%m-%d')}.",
        "",
        "| | " + " | ".join((*COLUMNS, "unit")) + " |",
        "|---|" + "---:|" * (len(COLUMNS) + 1),
    ]
    for row in rows:
        cells = [f"{row.values[name]:.4g}" if name in row.values else "" for name in COLUMNS]
        lines.append(f"| {row.name} | " + " | ".join((*cells, row.unit)) + " |")
    lines += ["", "## Goals", ""]
    for row in rows:
        if row.goals:
            lines.append(f"- {row.name}")
            lines += [f"  - {goal}" for goal in row.goals]
    return "\n".join(lines) + "\n"


MARK = "<!-- What follows is written by hand and kept by `make bench`. -->"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-data-") as directory:
        settings = Settings.read(data_dir=Path(directory))
        bench = Bench(settings, quick=arguments.quick)
        asyncio.run(bench.run())
    Console().print(show(bench.rows))
    if arguments.write:
        version = subprocess.run(
            ["docker", "version", "--format", "Docker Engine {{.Server.Version}}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        kept = ""
        if arguments.write.exists():
            _, found, rest = arguments.write.read_text().partition(MARK)
            kept = f"\n{found}{rest}" if found else ""
        arguments.write.write_text(document(bench.rows, version) + kept)


if __name__ == "__main__":
    main()
