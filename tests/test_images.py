"""The images: what they are made of, when they are built, and how the toolbox gets its volume.

Decisions are tested on a daemon of a few dictionaries; what the images hold, on the real one.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from runner import assets, images, ingredients
from runner.assets import asset_dir
from runner.docker_engine import DockerEngine
from runner.engine import ContainerInfo, ContainerSpec, Engine, ImageInfo, VolumeInfo
from runner.errors import (
    ConfigurationError,
    Conflict,
    EngineError,
    EngineUnavailable,
    ImageBuildError,
    ImageUnusable,
)
from runner.helper import wire
from runner.helper.jobs import CHDIR_FAILED, EXEC_FAILED, EXITED, RECORD, REMAIN
from runner.images import Recipe, recipe
from runner.ingredients import Wheel

pytestmark = pytest.mark.anyio

OLD = "0123456789abcdef"


@dataclass
class Version:
    """As much of `EngineVersion` as images ask for."""

    architecture: str = "amd64"


@dataclass
class Built:
    """A build that was asked for."""

    ref: str
    files: dict[str, bytes]
    labels: dict[str, str]
    arguments: dict[str, str]


@dataclass
class Daemon:
    """What the functions under test need of an `Engine`: images, containers, volumes by name.

    It copies into volumes as Docker does: the name is taken first, then an empty volume is
    filled, and only then can the container be seen.
    """

    present: dict[str, ImageInfo] = field(default_factory=dict)
    registry: set[str] = field(default_factory=set)
    architecture: str = "amd64"
    registry_hangs: bool = False
    builds: list[Built] = field(default_factory=list)
    pulls: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    made: dict[str, ContainerInfo] = field(default_factory=dict)
    content: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    filled: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    fill_slowly: anyio.Event | None = None
    filling: anyio.Event = field(default_factory=anyio.Event)
    refusal: str | None = None

    def has(self, ref: str, **changes: Any) -> ImageInfo:
        info = ImageInfo(f"sha256:{ref}", (ref,), self.architecture, "linux", {}, 1, "2026")
        self.present[ref] = replace(info, **changes)
        return self.present[ref]

    async def version(self) -> Version:
        return Version(self.architecture)

    async def image(self, ref: str) -> ImageInfo | None:
        return self.present.get(ref)

    async def images(self, label: str) -> list[ImageInfo]:
        key, _, value = label.partition("=")
        found = {image.id: image for image in self.present.values()}
        return [image for image in found.values() if image.labels.get(key) == value]

    async def pull(self, ref: str) -> bool:
        self.pulls.append(ref)
        if self.registry_hangs:
            await anyio.sleep_forever()
        if ref in self.registry:
            self.has(ref)
        return ref in self.registry

    async def import_image(self, archive: Path, ref: str, labels: Mapping[str, str]) -> ImageInfo:
        self.imported.append(archive.read_bytes().decode(errors="replace"))
        return self.has(ref, labels=labels)

    async def build(
        self,
        context: bytes,
        ref: str,
        *,
        labels: Mapping[str, str],
        arguments: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> ImageInfo:
        on_line("Step 1/1")
        self.builds.append(Built(ref, unpacked(context), dict(labels), dict(arguments)))
        return self.has(ref, labels=labels)

    async def tag(self, ref: str, new_ref: str) -> None:
        image = replace(self.present[ref], tags=(*self.present[ref].tags, new_ref))
        self.present[ref] = self.present[new_ref] = image

    async def remove_image(self, ref: str) -> None:
        if ref in self.used:
            raise Conflict("the image is in use")
        del self.present[ref]

    async def container(self, name: str) -> ContainerInfo | None:
        return self.made.get(name)

    async def containers(self, labels: Mapping[str, str]) -> list[ContainerInfo]:
        return [row for row in self.made.values() if labels.items() <= row.labels.items()]

    async def create(self, spec: ContainerSpec) -> str:
        assert spec.name is not None
        if self.refusal is not None:
            raise EngineError(self.refusal)
        if spec.name in self.names:
            raise Conflict(f"the name {spec.name} is taken")
        self.names.add(spec.name)
        (mount,) = spec.mounts
        assert (mount.kind, mount.target) == ("volume", "/.runner")
        assert (mount.copy, mount.read_only) == (True, False)
        self.used.add(mount.source)
        if not self.content.setdefault(mount.source, ""):
            self.content[mount.source] = "half"
            self.filling.set()
            if self.fill_slowly is not None:
                await self.fill_slowly.wait()
            self.content[mount.source] = f"all of {spec.image}"
            self.filled.append(mount.source)
        row = ContainerInfo(spec.name, spec.name, spec.image, spec.labels, "created")
        self.made[spec.name] = row
        return spec.name

    async def remove(self, name: str) -> None:
        self.made.pop(name, None)
        self.names.discard(name)
        self.used.discard(name)

    async def volume(self, name: str) -> VolumeInfo | None:
        return VolumeInfo(name, {}) if name in self.content else None

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        self.content.setdefault(name, "")

    async def remove_volume(self, name: str) -> None:
        if name in self.used:
            raise Conflict(f"remove {name}: volume is in use")
        self.content.pop(name, None)

    async def volumes(self, label: str) -> list[VolumeInfo]:
        return [VolumeInfo(name, {}) for name in self.content]


def unpacked(context: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(context)) as tar:
        for entry in tar:
            file = tar.extractfile(entry)
            assert file is not None
            found[entry.name] = file.read()
    return found


def on(daemon: Daemon) -> Engine:
    return cast(Engine, daemon)


@pytest.fixture
def daemon() -> Daemon:
    """A daemon with a base to build from, so that nothing is bootstrapped."""
    daemon = Daemon()
    daemon.has(ingredients.DISTRIBUTION_IMAGE)
    return daemon


@pytest.fixture
def bare() -> Daemon:
    """A daemon without any image, which no registry answers."""
    return Daemon()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache of wheels, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/rousseau-runner/wheels"


@pytest.fixture
def wheel(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A small wheel that is pinned instead of the real one, and all that pip can find."""
    pinned = ingredients.WHEELS["amd64"]
    buffer = io.BytesIO()
    name = f"google_re2-{ingredients.RE2_VERSION}.dist-info"
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("re2.py", "")
        file.writestr(
            f"{name}/METADATA",
            f"Metadata-Version: 2.1\nName: google-re2\nVersion: {ingredients.RE2_VERSION}\n",
        )
        file.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(images, "WHEELS", {"amd64": replace(pinned, sha256=digest)})
    index = tmp_path / "index"
    index.mkdir()
    (index / pinned.filename).write_bytes(content)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return content


@pytest.fixture
def cached(wheel: bytes, cache: Path) -> bytes:
    """The small wheel, in the user's cache already."""
    cache.mkdir(parents=True)
    (cache / ingredients.WHEELS["amd64"].filename).write_bytes(wheel)
    return wheel


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts shell scripts in the place of bootstrapping tools; without any there are none."""
    directory = tmp_path / "tools"
    directory.mkdir()

    def tool(name: str) -> str | None:
        return shutil.which(name, path=str(directory))

    def add(name: str, script: str) -> None:
        (directory / name).write_text(f"#!/bin/sh\n{script}")
        (directory / name).chmod(0o755)

    monkeypatch.setattr(ingredients, "_tool", tool)
    return add


# What an image is made of.


def test_recipes_of_the_same_inputs_have_the_same_digest() -> None:
    assert recipe("toolbox", "amd64") == recipe("toolbox", "amd64")
    assert recipe("toolbox", "amd64").digest == recipe("toolbox", "amd64").digest


def test_toolbox_is_made_of_its_directory_and_the_whole_helper() -> None:
    files = recipe("toolbox", "amd64").files
    own = {path.name for path in (asset_dir("images") / "toolbox").iterdir()}
    sources = Path(wire.__file__).parent
    assert set(files) == own | {f"helper/{path.name}" for path in sources.glob("*.py")}
    assert files["helper/wire.py"] == Path(wire.__file__).read_bytes()


OTHER_WHEEL = Wheel("google_re2.whl", "0" * 64, "manylinux_2_28_x86_64")
CHANGES: dict[str, Callable[[Recipe], Recipe]] = {
    "content": lambda old: replace(old, files={**old.files, "Dockerfile": b"FROM scratch"}),
    "helper": lambda old: replace(old, files={**old.files, "helper/wire.py": b"pass"}),
    "added file": lambda old: replace(old, files={**old.files, "more": b""}),
    "removed file": lambda old: replace(old, files={"Dockerfile": old.files["Dockerfile"]}),
    "wheel": lambda old: replace(old, wheel=OTHER_WHEEL),
    "architecture": lambda old: replace(old, architecture="arm64"),
    "argument": lambda old: replace(old, arguments={"BUILD_ESSENTIAL": "1"}),
    "name": lambda old: replace(old, name="sandbox"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_digest_changes_with_any_input(change: Callable[[Recipe], Recipe]) -> None:
    before = recipe("toolbox", "amd64")
    assert change(before).digest != before.digest


def test_digest_tells_where_one_file_ends_and_the_next_begins() -> None:
    first = Recipe("sandbox", "amd64", {"a": b"b", "c": b""}, {}, None)
    second = Recipe("sandbox", "amd64", {"a": b"bc", "": b""}, {}, None)
    assert first.digest != second.digest


def test_archive_does_not_depend_on_order_or_on_who_makes_it() -> None:
    archive = images.archive({"b": b"2", "a/c": b"1"})
    assert archive == images.archive({"a/c": b"1", "b": b"2"})
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        entries = [(entry.name, entry.uid, entry.mtime, entry.mode) for entry in tar]
    assert entries == [("a/c", 0, 0, 0o644), ("b", 0, 0, 0o644)]


def test_unknown_image_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"no image 'sandbux'.*sandbox, toolbox"):
        recipe("sandbux", "amd64")


def test_toolbox_for_an_architecture_without_a_wheel_is_refused() -> None:
    with pytest.raises(ImageBuildError, match=r"can't be built for riscv64.*amd64, arm64"):
        recipe("toolbox", "riscv64")


def test_installation_without_its_files_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "__file__", str(tmp_path / "runner/assets/__init__.py"))
    with pytest.raises(ConfigurationError, match=r"no images/ .* reinstall"):
        asset_dir("images")


def test_files_inside_the_package_come_before_those_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "__file__", str(tmp_path / "runner/assets/__init__.py"))
    (tmp_path / "policies").mkdir()
    assert asset_dir("policies") == tmp_path / "policies"
    (tmp_path / "runner/assets/policies").mkdir(parents=True)
    assert asset_dir("policies") == tmp_path / "runner/assets/policies"


# Building.


async def test_image_that_exists_is_neither_built_nor_talked_about(
    daemon: Daemon, lines: list[str]
) -> None:
    ref = recipe("toolbox", "amd64").ref
    daemon.has(ref)
    built = await images.build(on(daemon), "toolbox", on_line=lines.append)
    assert (built.ref, built.fresh, built.current) == (ref, False, True)
    assert daemon.builds == []
    assert lines == []


async def test_missing_sandbox_is_built_labelled_and_becomes_the_default(
    daemon: Daemon, lines: list[str]
) -> None:
    built = await images.build(on(daemon), "sandbox", on_line=lines.append)
    (build,) = daemon.builds
    assert build.ref == built.ref == f"rousseau-runner/sandbox:{built.digest}"
    assert build.arguments == {"BASE": ingredients.DISTRIBUTION_IMAGE, "BUILD_ESSENTIAL": "0"}
    assert build.labels == {
        "rousseau-runner.kind": "image",
        "rousseau-runner.image": "sandbox",
        "rousseau-runner.hash": built.digest,
        "rousseau-runner.build-essential": "0",
    }
    assert built.fresh
    assert daemon.present[images.DEFAULT_IMAGE].id == built.id
    assert "Step 1/1" in lines


async def test_toolbox_context_holds_the_helper_and_the_pinned_wheel(
    daemon: Daemon, lines: list[str], cached: bytes
) -> None:
    await images.build(on(daemon), "toolbox", on_line=lines.append)
    (build,) = daemon.builds
    assert build.files[f"wheels/{ingredients.WHEELS['amd64'].filename}"] == cached
    assert "helper/wire.py" in build.files
    assert "supervisor.c" in build.files


async def test_forced_build_asks_debian_anew_each_time(daemon: Daemon, lines: list[str]) -> None:
    first = await images.build(on(daemon), "sandbox", on_line=lines.append, force=True)
    second = await images.build(on(daemon), "sandbox", on_line=lines.append, force=True)
    assert first.ref == second.ref
    refreshed = [build.arguments["REFRESH"] for build in daemon.builds]
    assert len(set(refreshed)) == 2


async def test_forced_toolbox_gets_a_new_volume(
    daemon: Daemon, lines: list[str], cached: bytes
) -> None:
    volume = await images.ensure_toolbox(on(daemon), lines.append)
    await images.build(on(daemon), "toolbox", on_line=lines.append, force=True)
    assert daemon.content == {}
    assert await images.ensure_toolbox(on(daemon), lines.append) == volume
    assert daemon.filled == [volume, volume]


async def test_forced_toolbox_whose_volume_sessions_use_says_to_close_them(
    daemon: Daemon, lines: list[str], cached: bytes
) -> None:
    volume = await images.ensure_toolbox(on(daemon), lines.append)
    daemon.remove = lambda name: anyio.sleep(0)  # type: ignore[method-assign]
    with pytest.raises(ImageBuildError, match=f"open sessions use the volume {volume}.*close"):
        await images.build(on(daemon), "toolbox", on_line=lines.append, force=True)


# The wheel.


async def test_wheel_is_fetched_by_pip_once_and_kept(
    daemon: Daemon, lines: list[str], wheel: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await images.build(on(daemon), "toolbox", on_line=lines.append)
    kept = cache / ingredients.WHEELS["amd64"].filename
    assert kept.read_bytes() == wheel
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache / "nowhere"))
    await images.build(on(daemon), "toolbox", on_line=lines.append, force=True)
    assert [line for line in lines if line.startswith("fetching")] == [f"fetching {kept.name}"]


async def test_wheel_with_another_hash_is_refused(
    daemon: Daemon, lines: list[str], wheel: bytes, cache: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index" / ingredients.WHEELS["amd64"].filename
    index.write_bytes(wheel + b"and something more")
    with pytest.raises(ImageBuildError, match="fetching google-re2") as caught:
        await images.build(on(daemon), "toolbox", on_line=lines.append)
    assert "HASH" in "".join(caught.value.__notes__).upper()
    assert daemon.builds == []
    assert not cache.exists()


async def test_wheel_that_was_changed_in_the_cache_is_fetched_again(
    daemon: Daemon, lines: list[str], cached: bytes, cache: Path
) -> None:
    kept = cache / ingredients.WHEELS["amd64"].filename
    kept.write_bytes(b"changed")
    await images.build(on(daemon), "toolbox", on_line=lines.append)
    assert daemon.builds[0].files[f"wheels/{kept.name}"] == cached
    assert kept.read_bytes() == cached


async def test_wheel_that_no_index_has_can_be_put_in_place_by_hand(
    daemon: Daemon, lines: list[str], wheel: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache / "nowhere"))
    kept = cache / ingredients.WHEELS["amd64"].filename
    with pytest.raises(ImageBuildError, match=f"put .* at {kept}"):
        await images.build(on(daemon), "toolbox", on_line=lines.append)


# The base.


async def base_of(daemon: Daemon, lines: list[str]) -> str:
    await images.build(on(daemon), "sandbox", on_line=lines.append)
    return daemon.builds[0].arguments["BASE"]


async def test_base_bootstrapped_earlier_comes_before_the_distribution_image(
    daemon: Daemon, lines: list[str]
) -> None:
    daemon.has(ingredients.BASE_IMAGE)
    assert await base_of(daemon, lines) == ingredients.BASE_IMAGE
    assert daemon.pulls == []
    assert "bootstrapped earlier" in lines[0]


async def test_distribution_image_on_the_daemon_is_used_without_asking_a_registry(
    daemon: Daemon, lines: list[str]
) -> None:
    assert await base_of(daemon, lines) == ingredients.DISTRIBUTION_IMAGE
    assert daemon.pulls == []


async def test_distribution_image_is_pulled_where_a_registry_answers(
    bare: Daemon, lines: list[str]
) -> None:
    bare.registry.add(ingredients.DISTRIBUTION_IMAGE)
    assert await base_of(bare, lines) == ingredients.DISTRIBUTION_IMAGE
    assert f"base: {ingredients.DISTRIBUTION_IMAGE}, pulled" in lines


async def test_base_for_another_architecture_is_passed_over(
    daemon: Daemon, lines: list[str]
) -> None:
    daemon.has(ingredients.BASE_IMAGE, architecture="arm64")
    assert await base_of(daemon, lines) == ingredients.DISTRIBUTION_IMAGE


MMDEBSTRAP = """
echo "I: args $*"
for last; do
    case $last in *.tar) printf 'a root file system' > "$last" ;; esac
done
"""


@pytest.mark.parametrize(("uid", "mode"), [(0, "root"), (1000, "unshare")])
async def test_without_registry_the_base_is_bootstrapped_and_imported(
    bare: Daemon,
    lines: list[str],
    tools: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    mode: str,
) -> None:
    tools("mmdebstrap", MMDEBSTRAP)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert await base_of(bare, lines) == ingredients.BASE_IMAGE
    assert bare.pulls == [ingredients.DISTRIBUTION_IMAGE]
    assert bare.imported == ["a root file system"]
    # What is built from it inherits its labels: it must not look like a finished image.
    assert bare.present[ingredients.BASE_IMAGE].labels == {"rousseau-runner.kind": "base"}
    (arguments,) = [line for line in lines if line.startswith("I: args")]
    assert f"--mode={mode} --variant=minbase" in arguments
    assert "--architectures=amd64" in arguments
    assert "bookworm-security main" in arguments
    assert any("no registry handed out" in line and "mmdebstrap" in line for line in lines)


async def test_registry_that_never_answers_is_given_up(
    bare: Daemon,
    lines: list[str],
    tools: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools("mmdebstrap", MMDEBSTRAP)
    monkeypatch.setattr(ingredients, "PULL_S", 0.01)
    bare.registry_hangs = True
    assert await base_of(bare, lines) == ingredients.BASE_IMAGE


DEBOOTSTRAP = """
for root; do case $root in */root) break ;; esac; done
mkdir -p "$root/etc/apt" "$root/etc/dpkg/dpkg.cfg.d" "$root/var/cache/apt/archives"
echo old > "$root/etc/apt/sources.list"
touch "$root/var/cache/apt/archives/left.deb"
"""


async def test_debootstrap_does_for_root_and_gets_the_updates_too(
    bare: Daemon,
    lines: list[str],
    tools: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools("debootstrap", DEBOOTSTRAP)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert await base_of(bare, lines) == ingredients.BASE_IMAGE
    (archive,) = bare.imported
    assert "bookworm-security main" in archive
    assert "path-exclude=/usr/share/man" in archive
    assert "left.deb" not in archive


async def test_debootstrap_does_not_do_for_anybody_else(
    bare: Daemon,
    lines: list[str],
    tools: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools("debootstrap", DEBOOTSTRAP)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageBuildError, match="debootstrap would do for root only"):
        await base_of(bare, lines)


async def test_without_any_source_of_a_base_the_error_says_what_to_do(
    bare: Daemon, lines: list[str], tools: Callable[[str, str], None]
) -> None:
    with pytest.raises(ImageBuildError) as caught:
        await base_of(bare, lines)
    assert "`apt-get install mmdebstrap`" in str(caught.value)
    assert "`docker pull debian:bookworm-slim`" in str(caught.value)


async def test_failed_bootstrap_keeps_the_end_of_its_output(
    bare: Daemon,
    lines: list[str],
    tools: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools("mmdebstrap", "echo 'E: no such mirror' >&2; exit 3")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageBuildError, match=r"exit status 3; as root it needs no user") as caught:
        await base_of(bare, lines)
    assert caught.value.__notes__ == ["E: no such mirror"]
    assert bare.imported == []


async def test_cancelled_bootstrap_is_asked_to_clean_up(
    bare: Daemon, lines: list[str], tools: Callable[[str, str], None], tmp_path: Path
) -> None:
    cleaned = tmp_path / "cleaned"
    tools("mmdebstrap", f"trap 'echo > {cleaned}; exit 1' TERM; echo ready; sleep 30 & wait")
    with anyio.CancelScope() as scope:

        def cancel_when_ready(line: str) -> None:
            if line == "ready":
                scope.cancel()

        await images.build(on(bare), "sandbox", on_line=cancel_when_ready)
    assert cleaned.exists()


# The toolbox's volume.


@pytest.fixture
def toolbox(daemon: Daemon) -> Recipe:
    """The toolbox, built."""
    wanted = recipe("toolbox", "amd64")
    daemon.has(wanted.ref, labels=wanted.labels)
    return wanted


async def test_volume_is_filled_once_and_its_container_stays(
    daemon: Daemon, toolbox: Recipe, lines: list[str]
) -> None:
    volume = await images.ensure_toolbox(on(daemon), lines.append)
    assert volume == f"rousseau-runner-toolbox-{toolbox.digest}"
    assert daemon.content == {volume: f"all of {toolbox.ref}"}
    assert daemon.made[volume].labels["rousseau-runner.kind"] == "toolbox"
    assert await images.ensure_toolbox(on(daemon), lines.append) == volume
    assert daemon.filled == [volume]
    assert lines == []


async def test_volume_without_its_container_is_filled_anew(
    daemon: Daemon, toolbox: Recipe, lines: list[str]
) -> None:
    volume = images.toolbox_volume(toolbox)
    daemon.content[volume] = "half"
    await images.ensure_toolbox(on(daemon), lines.append)
    assert daemon.content == {volume: f"all of {toolbox.ref}"}


async def test_volume_that_sessions_use_gets_its_container_back(
    daemon: Daemon, toolbox: Recipe, lines: list[str]
) -> None:
    volume = images.toolbox_volume(toolbox)
    daemon.content[volume] = "what sessions run on"
    daemon.used.add(volume)
    await images.ensure_toolbox(on(daemon), lines.append)
    assert daemon.content == {volume: "what sessions run on"}
    assert volume in daemon.made


async def test_two_processes_at_once_fill_it_once_and_both_wait_for_the_end(
    daemon: Daemon, toolbox: Recipe, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "POPULATE_STEP_S", 0)
    daemon.fill_slowly = anyio.Event()
    seen: list[str] = []

    async def ensure() -> None:
        volume = await images.ensure_toolbox(on(daemon), lines.append)
        seen.append(daemon.content[volume])

    async with anyio.create_task_group() as group:
        group.start_soon(ensure)
        await daemon.filling.wait()
        group.start_soon(ensure)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert seen == []
        daemon.fill_slowly.set()
    assert seen == [f"all of {toolbox.ref}"] * 2
    assert daemon.filled == [images.toolbox_volume(toolbox)]


async def test_filling_that_never_ends_is_an_error_that_names_the_volume(
    daemon: Daemon, toolbox: Recipe, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "POPULATE_S", 0.02)
    monkeypatch.setattr(images, "POPULATE_STEP_S", 0.001)
    daemon.names.add(images.toolbox_volume(toolbox))
    with pytest.raises(ImageBuildError, match=images.toolbox_volume(toolbox)):
        await images.ensure_toolbox(on(daemon), lines.append)


async def test_other_refusals_of_the_daemon_are_not_waited_for(
    daemon: Daemon, toolbox: Recipe, lines: list[str]
) -> None:
    daemon.refusal = "no space left on device"
    with pytest.raises(EngineError, match="no space left"):
        await images.ensure_toolbox(on(daemon), lines.append)


async def test_lost_daemon_is_not_taken_for_a_volume_in_use(
    daemon: Daemon, toolbox: Recipe, lines: list[str]
) -> None:
    async def lost(name: str) -> None:
        raise EngineUnavailable("gone")

    daemon.content[images.toolbox_volume(toolbox)] = "half"
    daemon.remove_volume = lost  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        await images.ensure_toolbox(on(daemon), lines.append)


# Images for sessions.


async def test_image_that_nobody_has_is_an_error_that_says_what_to_do(
    daemon: Daemon, lines: list[str]
) -> None:
    with pytest.raises(ImageUnusable, match=r"no image 'alpine:3'.*docker build.*docker load"):
        await images.ensure_image(on(daemon), "alpine:3", lines.append)
    assert lines == ["pulling alpine:3"]


async def test_missing_image_is_pulled(daemon: Daemon, lines: list[str]) -> None:
    daemon.registry.add("alpine:3")
    image = await images.ensure_image(on(daemon), "alpine:3", lines.append)
    assert image.tags == ("alpine:3",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architecture": "arm64"},
            r"alpine:3 is for arm64.*runs on amd64.*--platform linux/amd64",
        ),
        ({"os": "windows"}, "alpine:3 is for windows, not for linux"),
    ],
)
async def test_image_for_another_system_is_refused(
    daemon: Daemon, lines: list[str], changes: dict[str, str], message: str
) -> None:
    daemon.has("alpine:3", **changes)
    with pytest.raises(ImageUnusable, match=message):
        await images.ensure_image(on(daemon), "alpine:3", lines.append)


@pytest.mark.parametrize("ref", ["sandbox", "rousseau-runner/sandbox", images.DEFAULT_IMAGE])
async def test_default_image_is_built_when_it_is_missing(
    daemon: Daemon, lines: list[str], ref: str
) -> None:
    image = await images.ensure_image(on(daemon), ref, lines.append)
    assert image.id == daemon.present[recipe("sandbox", "amd64").ref].id
    assert daemon.pulls == []
    assert await images.ensure_image(on(daemon), ref, lines.append)
    assert len(daemon.builds) == 1


@pytest.mark.parametrize("essential", [False, True])
async def test_outdated_default_image_gets_a_successor_of_its_kind(
    daemon: Daemon, lines: list[str], essential: bool
) -> None:
    old = {images.LABEL_HASH: OLD, images.LABEL_ESSENTIAL: str(int(essential))}
    daemon.has(images.DEFAULT_IMAGE, labels=old)
    image = await images.ensure_image(on(daemon), images.DEFAULT_IMAGE, lines.append)
    wanted = recipe("sandbox", "amd64", build_essential=essential)
    assert image.labels[images.LABEL_HASH] == wanted.digest
    assert daemon.present[images.DEFAULT_IMAGE].labels[images.LABEL_HASH] == wanted.digest


# Looking after them.


def outdated(daemon: Daemon, name: str) -> str:
    ref = f"rousseau-runner/{name}:{OLD}"
    labels = {images.LABEL_KIND: "image", images.LABEL_IMAGE: name, images.LABEL_HASH: OLD}
    daemon.has(ref, labels=labels)
    return ref


async def test_list_tells_current_images_from_outdated_ones(
    daemon: Daemon, toolbox: Recipe, lines: list[str]
) -> None:
    old = outdated(daemon, "toolbox")
    daemon.has(ingredients.BASE_IMAGE)
    sandbox = await images.build(on(daemon), "sandbox", on_line=lines.append)
    found = [(image.name, image.ref, image.current) for image in await images.built(on(daemon))]
    assert found[0] == ("base", ingredients.BASE_IMAGE, True)
    assert found[1] == ("sandbox", sandbox.ref, True)
    assert sorted(found[2:]) == sorted([("toolbox", old, False), ("toolbox", toolbox.ref, True)])


async def test_outdated_images_and_volumes_go_unless_they_are_used(
    daemon: Daemon, toolbox: Recipe, lines: list[str]
) -> None:
    current = await images.ensure_toolbox(on(daemon), lines.append)
    gone, used = outdated(daemon, "toolbox"), outdated(daemon, "sandbox")
    old, busy = f"rousseau-runner-toolbox-{OLD}", "rousseau-runner-toolbox-busy"
    daemon.made[old] = ContainerInfo(old, old, gone, {images.LABEL_KIND: "toolbox"}, "created")
    daemon.content |= {old: "all", busy: "all"}
    daemon.used |= {old, busy, used}
    assert await images.remove_outdated(on(daemon)) == [old, gone]
    assert set(daemon.content) == {current, busy}
    assert set(daemon.made) == {current}
    assert {toolbox.ref, used} <= set(daemon.present)


# What is really in them.


@dataclass(frozen=True)
class Real:
    """The images and the volume, on the real daemon."""

    sandbox: str
    toolbox: str
    volume: str

    def run(self, image: str, *command: str, options: tuple[str, ...] = ()) -> str:
        """Run a command in a locked container with the toolbox in its place."""
        locked = ["--read-only", "--cap-drop=ALL", "--user=1000:1000", "--network=none"]
        mount = f"--volume={self.volume}:/.runner:ro"
        done = subprocess.run(
            ["docker", "run", "--rm", *locked, mount, *options, image, *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def real(docker_daemon: None) -> Real:
    """Build what is missing: minutes on a new machine, nothing on another."""

    async def ensure() -> Real:
        engine = DockerEngine()
        try:
            said: list[str] = []
            sandbox = await images.ensure_image(engine, images.DEFAULT_IMAGE, said.append)
            volume = await images.ensure_toolbox(engine, said.append)
            toolbox = await images.build(engine, "toolbox", on_line=said.append)
        finally:
            await engine.close()
        return Real(sandbox.id, toolbox.ref, volume)

    return anyio.run(ensure)


def marked(test: Callable[..., None]) -> Callable[..., None]:
    """For tests of the real images, the first of which may have to wait until they are built."""
    return cast(Callable[..., None], pytest.mark.docker(pytest.mark.timeout(900)(test)))


@marked
def test_sandbox_has_no_file_that_gives_rights(real: Real) -> None:
    found = real.run(real.sandbox, "find", "/", "-xdev", "-perm", "/6000", options=("--user=0:0",))
    assert found == ""


@marked
def test_sandbox_has_what_agents_expect_and_a_utf8_locale(real: Real) -> None:
    programs = (
        "sh bash ls git python3 python rg curl find grep sed awk diff patch less ps unshare tar"
    )
    script = (
        "import locale, shutil, sys\n"
        f"print([name for name in {programs.split()!r} if shutil.which(name) is None])\n"
        "print(locale.getlocale()[1], sys.version_info >= (3, 11))"
    )
    assert real.run(real.sandbox, "python3", "-c", script) == "[]\nUTF-8 True\n"
    assert real.run(real.sandbox, "ls", "/var/lib/apt/lists") == ""


@marked
def test_toolbox_is_small_and_nothing_in_it_can_be_written(real: Real) -> None:
    writable = real.run(
        real.sandbox, "find", "/.runner", "-mindepth", "1", "-not", "-type", "l", "-perm", "/222"
    )
    assert writable == ""
    foreign = real.run(
        real.sandbox, "find", "/.runner", "(", "-perm", "/6000", "-o", "-not", "-uid", "0", ")"
    )
    assert foreign == ""
    unreadable = real.run(real.sandbox, "find", "/.runner", "-not", "-perm", "-444")
    assert unreadable == ""
    size = int(real.run(real.sandbox, "du", "-sk", "/.runner").split()[0])
    assert size < 40 * 1024


@pytest.fixture
def helper(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    """Options that put another helper in the place of ours: the function `main` in a text."""

    def options(source: str) -> tuple[str, ...]:
        directory = tmp_path / "helper"
        directory.mkdir(mode=0o755)
        tmp_path.chmod(0o755)
        (directory / "__init__.py").write_text("")
        (directory / "__main__.py").write_text(source)
        return (f"--volume={directory}:/.runner/app/runner/helper:ro",)

    return options


INIT = ("/.runner/bin/supervisor", "init")

REPORT = """
import os, json, sys
def main(arguments):
    import ctypes, threading, selectors, struct, subprocess, socket, queue, signal, typing, re
    import re2
    print(json.dumps({
        "arguments": arguments, "pid": os.getpid(), "environment": dict(os.environ),
        "path": sys.path, "site": "site" in sys.modules, "encoding": sys.getfilesystemencoding(),
        "found": re2.compile("a+").search("caat").group(),
        "descriptors": os.listdir("/proc/self/fd"),
    }))
"""


@marked
def test_toolbox_starts_its_helper_in_a_container_with_nothing_else(
    real: Real, helper: Callable[[str], tuple[str, ...]]
) -> None:
    # The toolbox's own image, since it holds no other file: no shell, no library, no /etc.
    said = json.loads(real.run(real.toolbox, *INIT, "--stdio", options=helper(REPORT)))
    assert said["arguments"] == ["--stdio"]
    assert said["pid"] == 1
    assert all(path.startswith("/.runner/") for path in said["path"])
    assert said["site"] is False
    assert said["found"] == "aa"
    assert said["encoding"] == "utf-8"
    assert said["descriptors"] == ["0", "1", "2", "3"]  # 3: the listing itself


@marked
def test_variables_of_the_image_reach_calls_but_not_the_loader_of_the_helper(
    real: Real, helper: Callable[[str], tuple[str, ...]]
) -> None:
    given = {
        "LD_PRELOAD": "/missing.so",
        "LD_LIBRARY_PATH": "/lib",
        "LC_ALL": "tr_TR.UTF-8",
        "MALLOC_PERTURB_": "1",
        "PYTHONHOME": "/nowhere",
        "HOME": "/root",
    }
    options = [f"--env={name}={value}" for name, value in given.items()]
    said = json.loads(real.run(real.toolbox, *INIT, options=(*helper(REPORT), *options)))
    environment = said["environment"]
    assert given.items() <= environment.items()
    assert set(environment) - set(given) <= {"PATH", "HOSTNAME"}


PROBE = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result == 0 and number == CLONE:
        os._exit(0)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "ok"
x86 = os.uname().machine == "x86_64"
CLONE = 56 if x86 else 220
NEWUSER = 0x10000000
numbers = {
    "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "setns": (308, 268), "clone3": (435, 435),
}
def main(arguments):
    said = {name: attempt(pair[0 if x86 else 1], 0, 0, 0, 0, 0) for name, pair in numbers.items()}
    unshare, socket = (272, 41) if x86 else (97, 198)
    said["unshare user"] = attempt(unshare, NEWUSER)
    said["unshare user among others"] = attempt(unshare, NEWUSER | 0x20000)
    said["unshare files"] = attempt(unshare, 0x400)
    said["clone user"] = attempt(CLONE, NEWUSER | 17, 0, 0, 0, 0)
    said["clone"] = attempt(CLONE, 17, 0, 0, 0, 0)
    said["AF_ALG"] = attempt(socket, 38, 5, 0)
    said["AF_VSOCK"] = attempt(socket, 40, 1, 0)
    said["AF_UNIX"] = attempt(socket, 1, 1, 0)
    said["AF_INET"] = attempt(socket, 2, 1, 0)
    if x86:
        said["x32"] = attempt(0x40000000 | 39)
    print(json.dumps(said))
"""


@marked
def test_init_denies_what_docker_may_allow(
    real: Real, helper: Callable[[str], tuple[str, ...]]
) -> None:
    # Without Docker's own filter, so that it is ours that answers.
    options = (*helper(PROBE), "--security-opt=seccomp=unconfined")
    said = json.loads(real.run(real.toolbox, *INIT, options=options))
    allowed = {"unshare files", "clone", "AF_UNIX", "AF_INET"}
    assert {name for name, answer in said.items() if answer == "ok"} == allowed
    assert said.pop("clone3") == "ENOSYS"
    assert said.pop("AF_ALG") == said.pop("AF_VSOCK") == "EAFNOSUPPORT"
    assert {answer for name, answer in said.items() if name not in allowed} == {"EPERM"}


SUPERVISE = """
import json, os, signal, sys
def supervise(command, descriptor=3, directory="/tmp"):
    output, sink = os.pipe()
    status, report = os.pipe()
    null = os.open("/dev/null", os.O_RDONLY)
    pid = os.posix_spawn(
        "/.runner/bin/supervisor",
        ["supervisor", "call", str(descriptor), "-", directory, *command],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, sink, 1),
            (os.POSIX_SPAWN_DUP2, sink, 2), (os.POSIX_SPAWN_DUP2, report, descriptor),
            (os.POSIX_SPAWN_DUP2, null, 20),
        ],
    )
    for end in (null, sink, report):
        os.close(end)
    found = []
    for end in (output, status):
        parts = []
        while part := os.read(end, 65536):
            parts.append(part)
        os.close(end)
        found.append(b"".join(parts))
    _, ended = os.waitpid(pid, 0)
    return found[0].decode(), found[1].hex(), os.waitstatus_to_exitcode(ended)
def main(arguments):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print(json.dumps([supervise(*case) for case in json.loads(arguments[0])]))
"""
Case = tuple[str, list[tuple[int, int]], int]


@pytest.fixture
def supervise(real: Real, helper: Callable[[str], tuple[str, ...]]) -> Callable[..., list[Case]]:
    """Run commands under supervisors; output, records and exit status of each."""

    def run(*cases: list[Any]) -> list[Case]:
        options = (*helper(SUPERVISE), "--tmpfs=/tmp")
        answers = json.loads(real.run(real.sandbox, *INIT, json.dumps(cases), options=options))
        found = []
        for output, raw, status in answers:
            records = [cast(tuple[int, int], row) for row in RECORD.iter_unpack(bytes.fromhex(raw))]
            found.append((output, records, status))
        return found

    return run


def shell(script: str) -> list[Any]:
    return [["/bin/sh", "-c", script]]


@marked
def test_supervisor_reports_how_its_program_ended(supervise: Callable[..., list[Case]]) -> None:
    cases = supervise(
        shell("echo hi; exit 7"),
        [["pwd"], 9, "/usr"],
        shell("kill -9 $$"),
        shell("kill -9 0"),
    )
    assert cases == [
        ("hi\n", [(EXITED, 7 << 8), (REMAIN, 0)], 0),
        ("/usr\n", [(EXITED, 0), (REMAIN, 0)], 0),
        ("", [(EXITED, 9), (REMAIN, 0)], 0),
        ("", [(EXITED, 9), (REMAIN, 0)], 0),
    ]


@marked
def test_supervisor_says_which_step_failed_and_why(supervise: Callable[..., list[Case]]) -> None:
    cases = supervise([["true"], 3, "/missing"], [["missing"]], [["/etc/passwd"]])
    assert cases == [
        ("", [(CHDIR_FAILED, 2)], 127),
        ("", [(EXEC_FAILED, 2)], 127),
        ("", [(EXEC_FAILED, 13)], 127),
    ]


@marked
def test_supervisor_stays_until_nothing_of_the_call_is_left(
    supervise: Callable[..., list[Case]],
) -> None:
    # Each ends only when its supervisor has closed the status descriptor.
    escaped, many = supervise(
        shell("(setsid sh -c 'sleep 0.3; touch /tmp/late' >/dev/null 2>&1 &); echo out"),
        shell(
            "ls /tmp/late; for i in $(seq 100); do (sleep 0.1 &); done; sleep 0.5;"
            " ps -e -o stat= | grep -c Z"
        ),
    )
    assert escaped == ("out\n", [(EXITED, 0), (REMAIN, 1)], 0)
    # No zombie is left of 100 orphans; grep's status says that it counted none.
    assert many == ("/tmp/late\n0\n", [(EXITED, 1 << 8), (REMAIN, 0)], 0)


@marked
def test_program_inherits_nothing_of_helper_or_supervisor(
    supervise: Callable[..., list[Case]],
) -> None:
    (case,) = supervise(
        shell(
            "ls /proc/self/fd | wc -l; grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f 2;"
            " cat /proc/self/oom_score_adj"
        )
    )
    # Descriptors: 0, 1, 2, and the one that lists them.
    assert case[0] == f"4\n{'0' * 16}\n{'0' * 16}\n500\n"


@marked
def test_program_can_neither_look_into_nor_end_its_supervisor(
    supervise: Callable[..., list[Case]],
) -> None:
    signals = " ".join(str(number) for number in range(1, 65) if number not in (9, 19))
    (case,) = supervise(
        shell(
            f"for n in {signals}; do kill -$n $PPID; done;"
            " cat /proc/$PPID/environ 2>&1 | grep -o 'Permission denied';"
            " ls /proc/$PPID/fd 2>&1 | grep -o 'Permission denied'; exit 0"
        )
    )
    denied = "Permission denied\n" * 2
    assert case == (denied, [(EXITED, 0), (REMAIN, 0)], 0)
