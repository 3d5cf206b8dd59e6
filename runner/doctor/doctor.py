"""Sessions opened to look at them, and everything that the doctor looks at, in order.

Owns the order, and what sessions show from outside: whether both carriers reach them, and
whose the files are that they write.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.answers import RequestFailed
from runner.client import AsyncRunner, AsyncSession
from runner.docker_engine import DockerEngine
from runner.doctor import machine
from runner.doctor.check import Check, State
from runner.doctor.probes import PROBE_LIMITS, PROBE_S, PROBES
from runner.engine import Engine, EngineVersion
from runner.errors import RunnerError
from runner.sandbox import Sandbox
from runner.settings import Settings

__all__ = ["examine", "judge_carriers", "judge_ownership"]

OnLine = Callable[[str], None]


async def examine(
    settings: Settings, *, engine: Engine | None = None, on_line: OnLine
) -> AsyncIterator[Check]:
    """Look at everything, and yield what is found as it is found.

    Args:
        settings: Whose image, runtime and directories are meant.
        engine: The container engine; None: Docker, as the settings say.
        on_line: Gets the progress of image builds, should they be needed.
    """
    yield machine.software()
    yield machine.data_disk(settings.data_dir)
    yield machine.records(settings)
    own = engine is None
    engine = engine or DockerEngine(settings.docker_host)
    try:
        try:
            version = await engine.version()
        except RunnerError as error:
            yield Check("docker", State.FAILED, str(error))
            return
        yield machine.docker(version)
        yield machine.runtimes(version, settings.runtime)
        yield machine.docker_disk(version)
        yield await machine.images(engine)
        async for check in _sessions(settings, engine, version, on_line):
            yield check
    finally:
        if own:
            await engine.close()


# Sessions.


async def _sessions(
    settings: Settings, engine: Engine, version: EngineVersion, on_line: OnLine
) -> AsyncIterator[Check]:
    try:
        async with AsyncRunner(settings=settings, engine=engine, on_line=on_line) as runner:
            carriers = {}
            for carrier in ("socket", "attach"):
                carriers[carrier] = await _reach(runner, carrier)
            for check in judge_carriers(carriers, settings, version):
                yield check
            if all(isinstance(answer, RunnerError) for answer in carriers.values()):
                return
            with _workspace(settings.data_dir) as workspace:
                async with runner.session(workspace=workspace, limits=PROBE_LIMITS) as session:
                    yield await _used_carrier(engine, session)
                    sandbox = await session.sandbox()
                    yield await _ownership(sandbox, workspace)
                    for probe in PROBES:
                        yield await probe.examine(sandbox)
    except RunnerError as error:
        yield Check("session", State.FAILED, str(error))


async def _reach(runner: AsyncRunner, carrier: str) -> float | RunnerError:
    """Seconds for a frame there and back, or why there is no session over this carrier."""
    try:
        async with runner.session(carrier=carrier) as session:
            sandbox = await session.sandbox()
            return min([await sandbox.ping() for _ in range(5)])
    except RunnerError as error:
        return error


def judge_carriers(
    carriers: Mapping[str, float | RunnerError], settings: Settings, version: EngineVersion
) -> list[Check]:
    """One carrier is enough, unless the settings insist on the other."""
    works = [name for name, answer in carriers.items() if not isinstance(answer, RunnerError)]
    checks = []
    for name, answer in carriers.items():
        if not isinstance(answer, RunnerError):
            finding = f"works, {answer * 1000:.2f} ms there and back"
            facts: dict[str, object] = {"works": True, "round_trip_s": answer}
            checks.append(Check(f"carrier {name}", State.OK, finding, facts=facts))
            continue
        facts = {"works": False, "error": answer.code}
        if not works or settings.carrier == name:
            state, advice = State.FAILED, ""
            if works:
                advice = f"set RUNNER_CARRIER={works[0]}, or leave it at auto"
        elif name == "socket" and not version.local:
            state, advice = State.OK, ""
        else:
            state, advice = State.WARNING, f"sessions use {works[0]} instead"
        checks.append(Check(f"carrier {name}", state, f"does not work: {answer}", advice, facts))
    return checks


async def _used_carrier(engine: Engine, session: AsyncSession) -> Check:
    container = await engine.container(session.info.container_id or "")
    used = "" if container is None else container.labels.get("rousseau-runner.carrier", "")
    return Check(
        "session", State.OK, f"opens, and talks over the {used} carrier", facts={"carrier": used}
    )


@contextmanager
def _workspace(data_dir: Path) -> Iterator[Path]:
    """A directory to mount that belongs to somebody without rights."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Below the data directory, since a daemon may not see this user's /tmp.
    with tempfile.TemporaryDirectory(dir=data_dir, prefix="doctor-") as directory:
        if os.geteuid() == 0:
            os.chown(directory, 65532, 65532)
        yield Path(directory)


async def _ownership(sandbox: Sandbox, workspace: Path) -> Check:
    """Whether what a session writes into a directory belongs to whoever owns the directory."""
    name = "files"
    try:
        await sandbox.write("/workspace/written", b"doctor\n")
        await sandbox.run("echo doctor > /workspace/run", deadline_s=PROBE_S)
    except (RequestFailed, RunnerError) as error:
        return Check(
            name,
            State.FAILED,
            f"a session can't write to {workspace}: {error}",
            "on SELinux hosts set RUNNER_SELINUX=z; a remote daemon does not see files from here",
        )
    return judge_ownership(
        workspace.stat(),
        {
            file: (workspace / file).lstat() if os.path.lexists(workspace / file) else None
            for file in ("written", "run")
        },
    )


def judge_ownership(directory: os.stat_result, files: Mapping[str, os.stat_result | None]) -> Check:
    """Compare the owners of files with that of their directory."""
    wanted = (directory.st_uid, directory.st_gid)
    for file, found in files.items():
        if found is None:
            return Check(
                "files",
                State.FAILED,
                f"what a session wrote ({file}) is not here",
                "the daemon mounts another machine's directory: run the runner where the daemon is",
            )
        if (found.st_uid, found.st_gid) != wanted:
            return Check(
                "files",
                State.WARNING,
                f"what a session writes belongs to {found.st_uid}:{found.st_gid},"
                f" its directory to {wanted[0]}:{wanted[1]}",
                "the daemon maps users (rootless, or userns-remap): files need a chown afterwards",
            )
    return Check(
        "files",
        State.OK,
        f"what a session writes belongs to its directory's owner, {wanted[0]}:{wanted[1]}",
        facts={"uid": wanted[0], "gid": wanted[1]},
    )
