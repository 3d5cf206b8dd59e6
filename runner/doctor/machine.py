"""This machine and its daemon, looked at from outside: nothing is started to find out.

Owns the checks of versions, directories, disks, records, runtimes and images. What sessions
show is `doctor`'s, and what holds inside of them `probes`'.
"""

import os
import platform
import shutil
from pathlib import Path

from runner.app import open_store
from runner.doctor.check import Check, State
from runner.engine import Engine, EngineVersion
from runner.errors import RunnerError
from runner.images import built
from runner.settings import Settings
from runner.version import __version__

__all__ = ["data_disk", "docker", "docker_disk", "images", "records", "runtimes", "software"]

LITTLE_DISK_BYTES = 2 * 1024**3
"""Less than this free is worth a warning: the images alone take a third of it to build."""
NO_DISK_BYTES = 100 * 1024**2


# This machine.


def software() -> Check:
    """Which versions these are."""
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    python = platform.python_version()
    return Check(
        "runner",
        State.OK,
        f"{__version__}, Python {python}, {system}",
        facts={"version": __version__, "python": python, "system": system},
    )


def data_disk(data_dir: Path) -> Check:
    """Whether records and workspaces have a place to be."""
    existing = data_dir
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(
            "data directory",
            State.FAILED,
            f"{data_dir}: {existing} is not ours to write",
            "make it writable, or set RUNNER_DATA_DIR",
        )
    return _room("data directory", data_dir, existing, "or set RUNNER_DATA_DIR to another place")


def _room(name: str, shown: Path, place: Path, advice: str) -> Check:
    free = shutil.disk_usage(place).free
    state = State.OK
    if free < LITTLE_DISK_BYTES:
        state = State.WARNING if free >= NO_DISK_BYTES else State.FAILED
    return Check(
        name,
        state,
        f"{shown}, {free / 1024**3:.1f} GiB free",
        "" if state is State.OK else f"make room, {advice}",
        {"path": str(shown), "free_bytes": free},
    )


def records(settings: Settings) -> Check:
    """Whether the store opens and its audit chain is whole."""
    try:
        with open_store(settings) as store:
            rows = store.verify()
            path = store.path
    except RunnerError as error:
        return Check("records", State.FAILED, str(error))
    return Check(
        "records",
        State.OK,
        f"{path}, audit chain whole ({rows} rows)",
        facts={"path": str(path), "rows": rows},
    )


# The daemon.


def docker(version: EngineVersion) -> Check:
    """What the daemon is, and whether it filters system calls."""
    filtered = any("name=seccomp" in option for option in version.security_options)
    rootless = ", rootless" if version.rootless else ""
    where = "local" if version.local else "remote"
    return Check(
        "docker",
        State.OK if filtered else State.WARNING,
        f"{version.server_version}, API {version.api_version}, {where}{rootless},"
        f" {version.os}/{version.architecture}, kernel {version.kernel},"
        f" cgroup v{version.cgroup_version}, {version.storage_driver}",
        "" if filtered else "its kernel takes no seccomp filters: use one that does",
        {
            "server_version": version.server_version,
            "api_version": version.api_version,
            "local": version.local,
            "rootless": version.rootless,
            "architecture": version.architecture,
            "kernel": version.kernel,
            "cgroup_version": version.cgroup_version,
            "storage_driver": version.storage_driver,
            "security_options": list(version.security_options),
        },
    )


def runtimes(version: EngineVersion, wanted: str | None) -> Check:
    """Which runtimes there are, and whether the one that is wanted is among them."""
    names = ", ".join(
        f"{name} (default)" if name == version.default_runtime else name
        for name in version.runtimes
    )
    facts = {"runtimes": list(version.runtimes), "default": version.default_runtime}
    if wanted is not None and wanted not in version.runtimes:
        return Check(
            "runtimes",
            State.FAILED,
            f"{names}: no {wanted}",
            f"install {wanted} and name it in the daemon's /etc/docker/daemon.json",
            facts,
        )
    return Check("runtimes", State.OK, names, facts=facts)


def docker_disk(version: EngineVersion) -> Check:
    """Whether the daemon has room for images and containers."""
    root = Path(version.root_dir)
    if not version.local or not root.is_dir():
        return Check("docker's disk", State.OK, f"{root} can't be seen from here")
    return _room("docker's disk", root, root, "for instance with `docker image prune`")


async def images(engine: Engine) -> Check:
    """Whether our own images are there, as they would be built now."""
    try:
        found = await built(engine)
    except RunnerError as error:
        return Check("images", State.FAILED, str(error))
    current = {image.name: image.ref for image in found if image.current}
    missing = [name for name in ("sandbox", "toolbox") if name not in current]
    outdated = sum(not image.current for image in found)
    facts = {"current": current, "missing": missing, "outdated": outdated}
    old = f"; {outdated} outdated" if outdated else ""
    if missing:
        return Check(
            "images",
            State.WARNING,
            f"{' and '.join(missing)} not built yet{old}",
            "the first session builds them; `runner image build` does it now",
            facts,
        )
    return Check("images", State.OK, f"sandbox and toolbox are current{old}", facts=facts)
