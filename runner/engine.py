"""A container engine as the rest sees it: typed values, and what is asked of it.

No I/O here and no `docker`: `runner.docker_engine` has the real one, `runner.testing` a fake,
and one contract suite holds for both. It knows nothing of sessions, calls or frames; what a
session's container looks like is decided above and arrives as a `ContainerSpec`, whose
defaults are the locked ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from runner.carrier import Carrier


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """What the daemon says of itself."""

    server_version: str
    api_version: str
    os: str
    architecture: str
    """As Docker names it: `amd64`, `arm64`."""
    kernel: str
    runtimes: tuple[str, ...]
    default_runtime: str
    security_options: tuple[str, ...]
    cgroup_version: str
    storage_driver: str
    root_dir: str
    rootless: bool
    local: bool
    """The daemon is reached through a Unix socket, so that it may see our files."""
    limits: Mapping[str, bool] = field(default_factory=dict)
    """Which limits the kernel lets it set: memory, swap, pids, cpu."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image in the daemon."""

    id: str
    tags: tuple[str, ...]
    architecture: str
    os: str
    labels: Mapping[str, str]
    size_bytes: int
    created: str
    volumes: tuple[str, ...] = ()
    """Paths that the image declares as volumes."""


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """A named volume in the daemon."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Mount:
    """Something of the host, shown in the container."""

    kind: Literal["bind", "volume"]
    source: str
    """An absolute path, or a volume's name."""
    target: str
    read_only: bool = True
    copy: bool = False
    """For an empty volume: fill it with what the image has at the target."""
    selinux: Literal["", "z", "Z"] = ""
    """Relabel a bind for SELinux: shared or private."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container to make. Whatever is not named is locked."""

    image: str
    command: tuple[str, ...]
    """Program and arguments; the image's own entrypoint is never used."""
    user: str = "65532:65532"
    name: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    """Path to mount options, such as `rw,nosuid,nodev,size=67108864`."""
    working_dir: str = "/"
    hostname: str = "sandbox"
    capabilities: tuple[str, ...] = ()
    """What is left of root's, by the kernel's names without `CAP_`."""
    writable: bool = False
    """Its root filesystem may be written to."""
    network: Literal["none"] = "none"
    runtime: str | None = None
    """None: the daemon's default."""
    memory_bytes: int = 512 * 1024**2
    """Swap is not given on top."""
    cpus: float = 1.0
    pids: int = 256
    nofile: int = 1024
    file_size_bytes: int = 1024**3
    shm_bytes: int = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A container as the daemon sees it now."""

    id: str
    name: str
    image: str
    labels: Mapping[str, str]
    state: str
    """As Docker names it: created, running, paused, exited, dead, …"""
    pid: int = 0
    """Of the first process, in the daemon's pid namespace; 0 unless it runs."""
    exit_code: int | None = None
    oom_killed: bool = False

    @property
    def running(self) -> bool:
        """Whether its processes exist and may run."""
        return self.state == "running"


class Engine(Protocol):
    """What sessions and images need of a container engine.

    Every method may raise `EngineUnavailable` when the daemon can't be reached, and
    `EngineError` when it refuses.
    """

    async def version(self) -> EngineVersion:
        """What the daemon is and can."""
        ...

    async def create(self, spec: ContainerSpec) -> str:
        """Make a container; returns its id. NotFound: no such image. Conflict: name taken."""
        ...

    async def start(self, container: str) -> None:
        """Start it. EngineError: its program could not be started, or a mount was refused."""
        ...

    async def kill(self, container: str) -> None:
        """End its processes; nothing happens to one that has ended or is gone."""
        ...

    async def remove(self, container: str) -> None:
        """Remove it, running or not, with its anonymous volumes; one that is gone is fine."""
        ...

    async def container(self, container: str) -> ContainerInfo | None:
        """What the daemon knows of it, or None where there is no such container."""
        ...

    async def containers(self, labels: Mapping[str, str]) -> list[ContainerInfo]:
        """Every container, running or not, that has these labels; an empty value means any."""
        ...

    async def attach(self, container: str) -> Carrier:
        """A stream to its standard input, output and error. NotFound: no such container."""
        ...

    async def image(self, ref: str) -> ImageInfo | None:
        """An image by name or id, or None."""
        ...

    async def images(self, label: str) -> list[ImageInfo]:
        """Images with a label, `key` or `key=value`."""
        ...

    async def pull(self, ref: str) -> bool:
        """Fetch an image; False where no registry answers or it has no such image."""
        ...

    async def import_image(self, archive: Path, ref: str, labels: Mapping[str, str]) -> ImageInfo:
        """Make an image of a tar archive of a root file system."""
        ...

    async def build(
        self,
        context: bytes,
        ref: str,
        *,
        labels: Mapping[str, str],
        arguments: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> ImageInfo:
        """Build a Dockerfile from a tar archive. ImageBuildError: a step failed."""
        ...

    async def tag(self, ref: str, new_ref: str) -> None:
        """Give an image another name."""
        ...

    async def remove_image(self, ref: str) -> None:
        """Remove an image, by its only name or its id, or one of its names; one gone is fine.

        Conflict: a container uses it, or it has other names and was given by its id.
        """
        ...

    async def volume(self, name: str) -> VolumeInfo | None:
        """A volume by name, or None."""
        ...

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a volume; one of that name that exists is kept as it is."""
        ...

    async def remove_volume(self, name: str) -> None:
        """Remove a volume; one that is gone is fine. Conflict: it is in use."""
        ...

    async def volumes(self, label: str) -> list[VolumeInfo]:
        """Volumes with a label, `key` or `key=value`."""
        ...

    async def close(self) -> None:
        """Give up connections."""
        ...
