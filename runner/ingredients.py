"""What images are made of that does not travel with the code: a Debian base, a wheel.

It finds, fetches or makes them on the host, says which it did, and checks what was pinned.
It knows nothing of the images that are made of them.
"""

import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import anyio
import anyio.abc
import anyio.to_thread
import platformdirs

from runner.engine import Engine
from runner.errors import ImageBuildError

OnLine = Callable[[str], None]

RELEASE = "bookworm"
BASE_IMAGE = f"rousseau-runner/base:{RELEASE}"
"""The base that was bootstrapped here, where no other could be had."""
BASE_LABELS = {"rousseau-runner.kind": "base"}
"""Not those of a finished image: whatever is built from the base inherits them."""
DISTRIBUTION_IMAGE = f"debian:{RELEASE}-slim"
PULL_S = 60.0
"""How long a registry may take to hand out the base; then it is bootstrapped."""

MIRROR = "http://deb.debian.org/debian"
SOURCES = (
    f"deb {MIRROR} {RELEASE} main",
    f"deb {MIRROR} {RELEASE}-updates main",
    f"deb http://deb.debian.org/debian-security {RELEASE}-security main",
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""The keys that Debian's packages are signed with, by the package of this name."""
_UNREAD = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
"""As in Debian's own slim images: what nobody reads in a container."""

_TAIL_LINES = 40
_CLEAN_UP_S = 5.0


# The base that images start from.


async def find_base(engine: Engine, architecture: str, on_line: OnLine) -> str:
    """An image with the pinned Debian release, from the nearest source.

    What the daemon has comes first, then a registry if one answers, then a bootstrap from
    Debian's packages by mmdebstrap or debootstrap on this host.

    Args:
        engine: Where the image is needed.
        architecture: As Docker names it.
        on_line: Is told which it is and why, and what the tools say.

    Returns:
        The image's name.

    Raises:
        ImageBuildError: There is none, and no tool to make one; or the tool failed.
        EngineUnavailable, EngineError: From the daemon.
    """
    for ref, origin in ((BASE_IMAGE, "bootstrapped earlier"), (DISTRIBUTION_IMAGE, "found")):
        image = await engine.image(ref)
        if image is not None and image.architecture == architecture:
            on_line(f"base: {ref}, {origin} on this Docker daemon")
            return ref
    on_line(f"base: asking the registry for {DISTRIBUTION_IMAGE}")
    with anyio.move_on_after(PULL_S):
        if await engine.pull(DISTRIBUTION_IMAGE):
            image = await engine.image(DISTRIBUTION_IMAGE)
            if image is not None and image.architecture == architecture:
                on_line(f"base: {DISTRIBUTION_IMAGE}, pulled")
                return DISTRIBUTION_IMAGE
    async with _temporary_directory() as directory:
        root = directory / "root.tar"
        await _bootstrap(architecture, root, on_line)
        on_line(f"base: importing {BASE_IMAGE}")
        await engine.import_image(root, BASE_IMAGE, BASE_LABELS)
    return BASE_IMAGE


async def _bootstrap(architecture: str, target: Path, on_line: OnLine) -> None:
    """Make a tar archive of a minimal Debian from the packages of its mirror."""
    privileged = os.geteuid() == 0
    mmdebstrap = _tool("mmdebstrap")
    debootstrap = _tool("debootstrap") if privileged else None
    tool = mmdebstrap or debootstrap
    if tool is None:
        raise ImageBuildError(
            f"there is no base to build from: this Docker daemon has no {DISTRIBUTION_IMAGE}, no"
            " registry handed it out, and mmdebstrap, which could make one, is not installed:"
            " install it (Debian and Ubuntu: `apt-get install mmdebstrap`), or get the image"
            f" (`docker pull {DISTRIBUTION_IMAGE}`)"
            + ("" if privileged else "; debootstrap would do for root only")
        )
    on_line(
        f"base: no registry handed out {DISTRIBUTION_IMAGE};"
        f" bootstrapping Debian {RELEASE} from its packages with {Path(tool).name}"
    )
    what = f"bootstrapping Debian {RELEASE} with {Path(tool).name}"
    if mmdebstrap is not None:
        mode = "root" if privileged else "unshare"
        command = [mmdebstrap, f"--mode={mode}", "--variant=minbase", "--format=tar"]
        command += [f"--architectures={architecture}"]
        if KEYRING.exists():  # elsewhere than on Debian, apt knows Debian's keys from here only
            command += [f"--keyring={KEYRING}"]
        command += [f"--dpkgopt={option}" for option in _UNREAD]
        hint = "" if privileged else "; as root it needs no user namespaces"
        await _run([*command, RELEASE, str(target), *SOURCES], what, on_line, hint=hint)
        return
    root = target.parent / "root"
    options = ["--variant=minbase", f"--arch={architecture}", "--force-check-gpg"]
    await _run([tool, *options, RELEASE, str(root), MIRROR], what, on_line)
    await anyio.to_thread.run_sync(_finish_root, root)
    pack = ["tar", "--numeric-owner", "--one-file-system", "-C", str(root), "-cf", str(target)]
    await _run([*pack, "."], "packing the new base", on_line)


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _finish_root(root: Path) -> None:
    """What mmdebstrap would have done: updates in the sources, options of dpkg, no cache."""
    (root / "etc/apt/sources.list").write_text("\n".join([*SOURCES, ""]))
    (root / "etc/dpkg/dpkg.cfg.d/99slim").write_text("\n".join([*_UNREAD, ""]))
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()


# The wheel.


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of google-re2 for the toolbox's interpreter."""

    filename: str
    sha256: str
    platform: str
    """As pip names it."""


RE2_VERSION = "1.1.20251105"
WHEELS: Mapping[str, Wheel] = {
    "amd64": Wheel(
        f"google_re2-{RE2_VERSION}-1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "03156291269f145eccddff63118f2df02d395792f51fc039f09955818943815a",
        "manylinux_2_28_x86_64",
    ),
    "arm64": Wheel(
        f"google_re2-{RE2_VERSION}-1-cp311-cp311-manylinux_2_26_aarch64.manylinux_2_28_aarch64.whl",
        "18a5610b26742b90cb1d64ead2b16fe0e3bd7e67add03fd3779cd1b85e401661",
        "manylinux_2_28_aarch64",
    ),
}
"""Per architecture as Docker names it: those that the toolbox can be built for."""


async def fetch_wheel(wheel: Wheel, on_line: OnLine) -> bytes:
    """The content of the pinned wheel: from the user's cache, else fetched by pip.

    Raises:
        ImageBuildError: pip failed, or what it fetched is not what was pinned.
    """
    cache = platformdirs.user_cache_path("rousseau-runner") / "wheels"
    kept = cache / wheel.filename
    content = await anyio.to_thread.run_sync(_read_if_sound, kept, wheel)
    if content is not None:
        return content
    on_line(f"fetching {wheel.filename}")
    async with _temporary_directory() as directory:
        requirements = directory / "requirements.txt"
        line = f"google-re2=={RE2_VERSION} --hash=sha256:{wheel.sha256}\n"
        await anyio.to_thread.run_sync(requirements.write_text, line)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--require-hashes"]
        command += ["--platform", wheel.platform, "--python-version", "3.11"]
        command += ["--implementation", "cp", "--abi", "cp311"]
        command += ["--dest", str(directory), "--requirement", str(requirements)]
        hint = (
            f"; where pip ({sys.executable} -m pip) is missing or can't reach an index,"
            f" put {wheel.filename} of google-re2 at {kept} yourself"
        )
        await _run(command, f"fetching google-re2 {RE2_VERSION} with pip", on_line, hint=hint)
        content = await anyio.to_thread.run_sync(_read_if_sound, directory / wheel.filename, wheel)
        if content is None:
            raise ImageBuildError(
                f"pip fetched another file than {wheel.filename} with SHA-256 {wheel.sha256}"
            )
        await anyio.to_thread.run_sync(_keep, content, kept)
    return content


def _read_if_sound(path: Path, wheel: Wheel) -> bytes | None:
    """The file's content, or None where there is none or it is not what was pinned."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return content if sha256(content).hexdigest() == wheel.sha256 else None


def _keep(content: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


# Processes and files of the host.


async def _run(command: Sequence[str], what: str, on_line: OnLine, *, hint: str = "") -> None:
    """Run a program to its end and pass its lines on.

    Raises:
        ImageBuildError: It failed: `what` it was to do, its status, the hint; as a note the
            end of its output.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    async with await anyio.open_process(command, stdin=DEVNULL, stderr=STDOUT) as process:
        assert process.stdout is not None
        try:
            async for line in _lines(process.stdout):
                tail.append(line)
                on_line(line)
            status = await process.wait()
        except anyio.get_cancelled_exc_class():
            # They clean up after themselves when asked to stop.
            process.terminate()
            with anyio.move_on_after(_CLEAN_UP_S, shield=True):
                await process.wait()
            raise
    if status != 0:
        failure = ImageBuildError(f"{what} failed with exit status {status}{hint}")
        failure.add_note("\n".join(tail))
        raise failure


async def _lines(stream: anyio.abc.ByteReceiveStream) -> AsyncIterator[str]:
    rest = b""
    async for chunk in stream:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()


@asynccontextmanager
async def _temporary_directory() -> AsyncIterator[Path]:
    made = await anyio.to_thread.run_sync(lambda: tempfile.TemporaryDirectory(prefix="runner-"))
    try:
        yield Path(made.name)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(made.cleanup)
