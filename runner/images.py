"""The project's own images, and the volume with the helper's runtime.

It owns what goes into an image, the hash of that, when an image has to be built, and how the
toolbox gets into its volume. It speaks to the daemon through `Engine` only, and knows nothing
of sessions, nor where ingredients come from.

An image's name carries a hash of everything that goes into it, so that "is it up to date"
is the question whether it exists. What Debian's mirror had on the day is not part of the
hash: `force` asks for it anew.
"""

import io
import tarfile
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

import anyio

from runner.assets import asset_dir
from runner.engine import ContainerSpec, Engine, ImageInfo, Mount
from runner.errors import (
    ConfigurationError,
    Conflict,
    ImageBuildError,
    ImageUnusable,
)
from runner.ingredients import BASE_IMAGE, RELEASE, WHEELS, OnLine, Wheel, fetch_wheel, find_base

ImageName = Literal["sandbox", "toolbox"]

DEFAULT_IMAGE = "rousseau-runner/sandbox:latest"
"""What sessions use unless told otherwise: built here when it is missing or outdated."""
TOOLBOX_DIRECTORY = "/.runner"

LABEL_HASH = "rousseau-runner.hash"
LABEL_KIND = "rousseau-runner.kind"
LABEL_IMAGE = "rousseau-runner.image"
LABEL_ESSENTIAL = "rousseau-runner.build-essential"
"""`1` on a sandbox that has a compiler, so that its successor gets one too."""

POPULATE_S = 60.0
"""How long another process's filling of the toolbox volume is waited for."""
POPULATE_STEP_S = 0.1

_HASH_DIGITS = 16
_ESSENTIAL = "BUILD_ESSENTIAL"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that goes into an image, as far as it is ours to decide."""

    name: ImageName
    architecture: str
    files: Mapping[str, bytes]
    """The build context, by path; without the wheel, which is fetched when it is needed."""
    arguments: Mapping[str, str]
    wheel: Wheel | None

    @property
    def digest(self) -> str:
        """The first 16 hex digits of a SHA-256 over all of it."""
        parts = [self.name, self.architecture, f"debian {RELEASE} minbase"]
        parts += [f"{key}={value}" for key, value in sorted(self.arguments.items())]
        parts += [self.wheel.sha256 if self.wheel else "no wheel"]
        digest = sha256("\0".join(parts).encode())
        for path, content in sorted(self.files.items()):
            digest.update(f"\0{path}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()[:_HASH_DIGITS]

    @property
    def ref(self) -> str:
        """The image's name."""
        return f"rousseau-runner/{self.name}:{self.digest}"

    @property
    def labels(self) -> dict[str, str]:
        """What marks the image as ours."""
        labels = {LABEL_KIND: "image", LABEL_IMAGE: self.name, LABEL_HASH: self.digest}
        if _ESSENTIAL in self.arguments:
            labels[LABEL_ESSENTIAL] = self.arguments[_ESSENTIAL]
        return labels


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image of ours in the daemon."""

    name: str
    """`sandbox`, `toolbox`, or `base` for one that was bootstrapped."""
    ref: str
    digest: str
    """The hash of what went into it; empty for a base."""
    id: str
    size_bytes: int
    created: str
    architecture: str
    current: bool
    """It is what a build would make now."""
    fresh: bool = False
    """It was built just now, rather than found."""


def recipe(name: str, architecture: str, *, build_essential: bool = False) -> Recipe:
    """What the image of that name is made of now.

    Args:
        name: `sandbox` or `toolbox`.
        architecture: The daemon's, as Docker names it: `amd64`, `arm64`.
        build_essential: For the sandbox: a compiler and make besides.

    Raises:
        ConfigurationError: There is no such image, or the installation is incomplete.
        ImageBuildError: The toolbox does not exist for this architecture.
    """
    if name not in get_args(ImageName):
        raise ConfigurationError(
            f"there is no image {name!r}; those there are: {', '.join(get_args(ImageName))}"
        )
    files = _files(asset_dir("images") / name)
    if name == "sandbox":
        arguments = {_ESSENTIAL: "1" if build_essential else "0"}
        return Recipe("sandbox", architecture, files, arguments, None)
    wheel = WHEELS.get(architecture)
    if wheel is None:
        raise ImageBuildError(
            f"the helper's runtime can't be built for {architecture};"
            f" it can for {', '.join(WHEELS)}"
        )
    helper = Path(__file__).parent / "helper"
    files |= {f"helper/{path.name}": path.read_bytes() for path in helper.glob("*.py")}
    return Recipe("toolbox", architecture, files, {}, wheel)


def _files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        # pip compiles every module that it installs, those of images too.
        if path.is_file() and path.parent.name != "__pycache__"
    }


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of files by path: the same bytes for the same files, whoever makes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


# Building.


async def build(
    engine: Engine,
    name: str,
    *,
    on_line: OnLine,
    force: bool = False,
    build_essential: bool = False,
) -> BuiltImage:
    """Make sure that an image of ours exists as it should be now.

    Args:
        engine: Where to build it.
        name: `sandbox` or `toolbox`.
        on_line: Gets the progress, line by line. Nothing is said where nothing is done.
        force: Build it even though it exists, with what Debian's packages are today. The
            volume of a toolbox is filled anew, which sessions that use it prevent.
        build_essential: For the sandbox: a compiler and make besides.

    Raises:
        ConfigurationError: There is no such image.
        ImageBuildError: It could not be built, or there is no base for it: what failed, what
            to do, and as a note the end of the output.
        EngineUnavailable, EngineError: From the daemon.
    """
    architecture = (await engine.version()).architecture
    wanted = recipe(name, architecture, build_essential=build_essential)
    image = None if force else await engine.image(wanted.ref)
    fresh = image is None
    if image is None:
        image = await _build(engine, wanted, on_line, force=force)
        if force and wanted.name == "toolbox":
            await _discard_volume(engine, toolbox_volume(wanted))
    if wanted.name == "sandbox" and DEFAULT_IMAGE not in image.tags:
        await engine.tag(wanted.ref, DEFAULT_IMAGE)
    return _built(image, wanted.ref, current=True, fresh=fresh)


async def _build(engine: Engine, wanted: Recipe, on_line: OnLine, *, force: bool) -> ImageInfo:
    files = dict(wanted.files)
    if wanted.wheel is not None:
        files[f"wheels/{wanted.wheel.filename}"] = await fetch_wheel(wanted.wheel, on_line)
    arguments = {**wanted.arguments, "BASE": await find_base(engine, wanted.architecture, on_line)}
    if force:
        arguments["REFRESH"] = str(time.time_ns())
    on_line(f"building {wanted.ref}")
    return await engine.build(
        archive(files), wanted.ref, labels=wanted.labels, arguments=arguments, on_line=on_line
    )


async def built(engine: Engine) -> list[BuiltImage]:
    """Every image of ours in the daemon, outdated ones included, by name and age."""
    current = {wanted.ref for wanted in _current((await engine.version()).architecture)}
    found = []
    for image in await engine.images(f"{LABEL_KIND}=image"):
        # One that a forced build replaced has lost its name.
        ref = min(set(image.tags) - {DEFAULT_IMAGE}, default=image.id)
        found.append(_built(image, ref, current=ref in current))
    base = await engine.image(BASE_IMAGE)
    if base is not None:
        found.append(_built(base, BASE_IMAGE, current=True))
    return sorted(found, key=lambda image: (image.name, image.created))


def _current(architecture: str) -> list[Recipe]:
    """All that this version may make."""
    recipes = [recipe("sandbox", architecture, build_essential=flag) for flag in (False, True)]
    if architecture in WHEELS:
        recipes.append(recipe("toolbox", architecture))
    return recipes


def _built(image: ImageInfo, ref: str, *, current: bool, fresh: bool = False) -> BuiltImage:
    return BuiltImage(
        name=image.labels.get(LABEL_IMAGE, "base"),
        ref=ref,
        digest=image.labels.get(LABEL_HASH, ""),
        id=image.id,
        size_bytes=image.size_bytes,
        created=image.created,
        architecture=image.architecture,
        current=current,
        fresh=fresh,
    )


async def ensure_image(engine: Engine, ref: str, on_line: OnLine) -> ImageInfo:
    """An image for a session: found, pulled, or built where it is our own.

    Args:
        engine: Where it is needed.
        ref: A name or id; `sandbox` is short for `DEFAULT_IMAGE`.
        on_line: Gets the progress, where there is any.

    Raises:
        ImageUnusable: It is not there and no registry has it, or it is for another
            architecture or system.
        ImageBuildError: It is our own and could not be built.
        EngineUnavailable, EngineError: From the daemon.
    """
    architecture = (await engine.version()).architecture
    ours = ref in ("sandbox", DEFAULT_IMAGE, DEFAULT_IMAGE.removesuffix(":latest"))
    image = await engine.image(DEFAULT_IMAGE if ours else ref)
    if ours:
        essential = image is not None and image.labels.get(LABEL_ESSENTIAL) == "1"
        wanted = recipe("sandbox", architecture, build_essential=essential)
        if image is None or image.labels.get(LABEL_HASH) != wanted.digest:
            made = await build(engine, "sandbox", on_line=on_line, build_essential=essential)
            image = await engine.image(made.ref)
    elif image is None:
        on_line(f"pulling {ref}")
        if await engine.pull(ref):
            image = await engine.image(ref)
    if image is None:
        raise ImageUnusable(
            f"there is no image {ref!r} on this Docker daemon, and no registry gave it out:"
            " build it (`docker build -t NAME DIRECTORY`), load it (`docker load -i FILE`),"
            " or leave the image out to use the default one"
        )
    check_usable(image, architecture)
    return image


def check_usable(image: ImageInfo, engine_architecture: str) -> None:
    """Find out whether the daemon can run an image natively, as the helper's runtime needs.

    Raises:
        ImageUnusable: It is for another architecture, or not for Linux.
    """
    name = image.tags[0] if image.tags else image.id
    if image.os != "linux":
        raise ImageUnusable(f"the image {name} is for {image.os}, not for linux")
    if image.architecture != engine_architecture:
        raise ImageUnusable(
            f"the image {name} is for {image.architecture}, and this Docker daemon runs on"
            f" {engine_architecture}: get it for that"
            f" (`docker pull --platform linux/{engine_architecture} {name}`)"
        )


# The toolbox's volume.


def toolbox_volume(toolbox: Recipe) -> str:
    """The name of the volume for a toolbox: another content, another volume."""
    return f"rousseau-runner-toolbox-{toolbox.digest}"


async def ensure_toolbox(engine: Engine, on_line: OnLine) -> str:
    """Make sure that a volume holds the helper's runtime as it should be now.

    Docker copies an image's content into an empty volume when a container with both is
    created, and shows the container only when that is done. Hence the container that filled
    the volume, never started, stays: there is no other proof that the copying was finished,
    and it keeps the volume from `docker volume prune`. A volume without its container is
    being filled at this moment, or was left half full by a daemon that stopped.

    Returns:
        The volume's name.

    Raises:
        ImageBuildError: The toolbox could not be built, or another process's filling of the
            volume does not end.
        EngineUnavailable, EngineError: From the daemon.
    """
    wanted = recipe("toolbox", (await engine.version()).architecture)
    volume = toolbox_volume(wanted)
    if await engine.container(volume) is not None:
        return volume
    if await engine.image(wanted.ref) is None:
        await _build(engine, wanted, on_line, force=False)
    labels = {LABEL_KIND: "toolbox", LABEL_HASH: wanted.digest}
    filling = ContainerSpec(
        image=wanted.ref,
        command=(f"{TOOLBOX_DIRECTORY}/bin/supervisor",),
        name=volume,
        labels=labels,
        mounts=(Mount("volume", volume, TOOLBOX_DIRECTORY, read_only=False, copy=True),),
    )
    with anyio.move_on_after(POPULATE_S):
        while await engine.container(volume) is None:
            if await engine.volume(volume) is not None:
                await _remove_unused(engine, volume)
            await engine.create_volume(volume, labels)
            try:
                await engine.create(filling)
            except Conflict:
                await anyio.sleep(POPULATE_STEP_S)
        return volume
    raise ImageBuildError(
        f"another process has been filling the volume {volume} for {POPULATE_S:.0f} s:"
        " look at the Docker daemon's log, or remove the volume and try again"
    )


async def _remove_unused(engine: Engine, volume: str) -> bool:
    """Remove a toolbox's volume; False where it is in use.

    That is by a container that is filling it, or by sessions: those were started when it was
    full, and somebody has since removed the container that proved it.
    """
    return await _unless_used(engine.remove_volume(volume))


async def _unless_used(removal: Awaitable[None]) -> bool:
    try:
        await removal
    except Conflict:
        return False
    return True


async def _discard_volume(engine: Engine, volume: str) -> None:
    """Forget a toolbox's volume, so that the next session fills it anew."""
    await engine.remove(volume)
    if not await _remove_unused(engine, volume):
        raise ImageBuildError(
            f"the new toolbox is built, but open sessions use the volume {volume} with the old"
            " one: close them, then build it again"
        )


async def remove_outdated(engine: Engine) -> list[str]:
    """Remove images and toolbox volumes that this version would not make; what is in use stays.

    Returns:
        The names of what was removed.

    Raises:
        EngineUnavailable, EngineError: From the daemon.
    """
    architecture = (await engine.version()).architecture
    current = {toolbox_volume(wanted) for wanted in _current(architecture)}
    removed = []
    for container in await engine.containers({LABEL_KIND: "toolbox"}):
        if container.name not in current:
            await engine.remove(container.id)
    for volume in await engine.volumes(f"{LABEL_KIND}=toolbox"):
        if volume.name not in current and await _remove_unused(engine, volume.name):
            removed.append(volume.name)
    for image in await built(engine):
        if not image.current and await _unless_used(engine.remove_image(image.ref)):
            removed.append(image.ref)
    return removed
