"""What every engine does alike: the fake is worth as much as it behaves like the real one."""

import asyncio
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.carrier import Carrier
from runner.engine import ContainerSpec, Engine, Mount
from runner.errors import Conflict, NotFound
from runner.images import DEFAULT_IMAGE, LABEL_HASH
from tests.contract.conftest import LABEL

pytestmark = pytest.mark.anyio

UNKNOWN = "0" * 64
FIRST = b"sixteen bytes 16"


def spec(mark: str, **changes: Any) -> ContainerSpec:
    """A container that sends back what it gets first."""
    plain = ContainerSpec(
        image=DEFAULT_IMAGE, command=("/bin/sh", "-c", "exec cat"), labels={LABEL: mark}
    )
    return replace(plain, **changes)


class Reader:
    """What arrives from a carrier."""

    def __init__(self, carrier: Carrier):
        self.received = bytearray()
        self.ends = 0
        self._changed = asyncio.Event()
        carrier.start(self._on_data, self._on_end)

    def _on_data(self, data: bytes | memoryview) -> None:
        self.received += data
        self._changed.set()

    def _on_end(self, error: BaseException | None) -> None:
        self.ends += 1
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


# The engine itself.


async def test_an_engine_says_what_it_is(engine: Engine) -> None:
    version = await engine.version()
    assert version.os == "linux"
    assert version.architecture in ("amd64", "arm64")
    assert version.default_runtime in version.runtimes
    assert version.server_version
    assert version.api_version
    assert await engine.version() == version


# Containers.


async def test_a_container_goes_from_created_to_running_to_exited_to_gone(
    engine: Engine, mark: str
) -> None:
    container = await engine.create(spec(mark))
    created = await engine.container(container)
    assert created is not None
    assert (created.id, created.state, created.pid, created.running) == (
        container,
        "created",
        0,
        False,
    )
    await engine.start(container)
    running = await engine.container(container)
    assert running is not None
    assert (running.state, running.running, running.exit_code) == ("running", True, None)
    assert running.pid > 0
    await engine.kill(container)
    ended = await until_ended(engine, container)
    assert (ended.state, ended.exit_code, ended.pid, ended.oom_killed) == ("exited", 137, 0, False)
    await engine.remove(container)
    assert await engine.container(container) is None


async def until_ended(engine: Engine, container: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            state = await engine.container(container)
            assert state is not None
            if not state.running:
                return state
            await asyncio.sleep(0.01)


async def test_a_container_is_found_by_its_name_as_by_its_id(engine: Engine, mark: str) -> None:
    name = f"runner-test-{mark}"
    container = await engine.create(spec(mark, name=name))
    by_name = await engine.container(name)
    assert by_name == await engine.container(container)
    assert by_name is not None
    assert (by_name.name, by_name.id, by_name.image) == (name, container, DEFAULT_IMAGE)
    assert by_name.labels[LABEL] == mark
    await engine.remove(name)
    assert await engine.container(container) is None


async def test_a_container_without_a_name_gets_one(engine: Engine, mark: str) -> None:
    found = await engine.container(await engine.create(spec(mark)))
    assert found is not None
    assert found.name


async def test_a_name_that_is_taken_is_a_conflict_and_the_first_keeps_it(
    engine: Engine, mark: str
) -> None:
    name = f"runner-test-{mark}"
    first = await engine.create(spec(mark, name=name))
    with pytest.raises(Conflict):
        await engine.create(spec(mark, name=name))
    found = await engine.container(name)
    assert found is not None
    assert found.id == first
    await engine.remove(first)
    assert await engine.create(spec(mark, name=name)) != first


async def test_a_missing_image_is_not_found(engine: Engine, mark: str) -> None:
    with pytest.raises(NotFound, match="No such image"):
        await engine.create(spec(mark, image="runner-test/none:none"))
    assert await engine.containers({LABEL: mark}) == []


async def test_what_needs_a_container_says_when_there_is_none(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.start(UNKNOWN)
    with pytest.raises(NotFound):
        await engine.attach(UNKNOWN)
    assert await engine.container(UNKNOWN) is None


async def test_killing_what_does_not_run_and_removing_what_is_gone_does_nothing(
    engine: Engine, mark: str
) -> None:
    await engine.kill(UNKNOWN)
    await engine.remove(UNKNOWN)
    container = await engine.create(spec(mark))
    await engine.kill(container)
    state = await engine.container(container)
    assert state is not None
    assert state.state == "created"
    await engine.remove(container)
    await engine.remove(container)
    await engine.kill(container)


async def test_a_running_container_can_be_removed(engine: Engine, mark: str) -> None:
    container = await engine.create(spec(mark))
    await engine.start(container)
    await engine.remove(container)
    assert await engine.container(container) is None


async def test_removals_at_once_all_end_with_the_container_gone(engine: Engine, mark: str) -> None:
    name = f"runner-test-{mark}"
    container = await engine.create(spec(mark, name=name))
    await engine.start(container)
    await asyncio.gather(*(engine.remove(container) for _ in range(5)))
    assert await engine.container(container) is None
    await engine.create(spec(mark, name=name))  # the name is free, too


async def test_containers_are_listed_by_all_of_their_labels(engine: Engine, mark: str) -> None:
    one = await engine.create(spec(mark, labels={LABEL: mark, "colour": "red", "size": "1"}))
    two = await engine.create(spec(mark, labels={LABEL: mark, "colour": "blue"}))
    await engine.start(two)

    async def listed(**labels: str) -> set[str]:
        return {found.id for found in await engine.containers({LABEL: mark, **labels})}

    assert await listed() == {one, two}
    assert await listed(colour="red") == {one}
    assert await listed(colour="") == {one, two}
    assert await listed(size="") == {one}
    assert await listed(colour="blue", size="1") == set()
    assert await listed(colour="re") == set()
    states = {found.id: found.state for found in await engine.containers({LABEL: mark})}
    assert states == {one: "created", two: "running"}
    (found,) = await engine.containers({LABEL: mark, "colour": "red"})
    assert found.labels == {**found.labels, "colour": "red", "size": "1"}


# Streams.


async def test_a_stream_carries_bytes_both_ways(engine: Engine, mark: str) -> None:
    container = await engine.create(spec(mark))
    carrier = await engine.attach(container)
    await engine.start(container)
    reader = Reader(carrier)
    carrier.send(FIRST)
    await reader.until(lambda: len(reader.received) >= len(FIRST))
    assert reader.received == FIRST
    carrier.close()
    await reader.until(lambda: reader.ends)


@pytest.mark.parametrize("ending", ["kill", "remove"])
async def test_a_stream_ends_once_when_its_container_does(
    engine: Engine, mark: str, ending: str
) -> None:
    container = await engine.create(spec(mark))
    carrier = await engine.attach(container)
    await engine.start(container)
    reader = Reader(carrier)
    carrier.send(FIRST)
    await reader.until(lambda: reader.received)
    await getattr(engine, ending)(container)
    await reader.until(lambda: reader.ends)
    carrier.send(b"into the void")
    carrier.close()
    await asyncio.sleep(0.05)
    assert reader.ends == 1


async def test_closing_a_stream_leaves_its_container_alone_and_another_can_follow(
    engine: Engine, mark: str
) -> None:
    container = await engine.create(spec(mark))
    await engine.start(container)
    for _ in range(3):
        carrier = await engine.attach(container)
        reader = Reader(carrier)
        carrier.send(FIRST)
        await reader.until(lambda: len(reader.received) >= len(FIRST))  # noqa: B023
        carrier.close()
        await reader.until(lambda: reader.ends)  # noqa: B023
    state = await engine.container(container)
    assert state is not None
    assert state.running


# Volumes.


async def test_a_volume_is_made_once_found_listed_and_removed(engine: Engine, mark: str) -> None:
    name = f"runner-test-{mark}"
    assert await engine.volume(name) is None
    await engine.create_volume(name, {LABEL: mark, "colour": "red"})
    await engine.create_volume(name, {LABEL: mark, "colour": "blue"})  # is kept as it is
    found = await engine.volume(name)
    assert found is not None
    assert (found.name, found.labels["colour"]) == (name, "red")
    assert [volume.name for volume in await engine.volumes(f"{LABEL}={mark}")] == [name]
    assert name in [volume.name for volume in await engine.volumes(LABEL)]
    assert await engine.volumes(f"{LABEL}={mark}x") == []
    await engine.remove_volume(name)
    await engine.remove_volume(name)
    assert await engine.volume(name) is None


async def test_a_volume_that_is_in_use_is_not_removed(engine: Engine, mark: str) -> None:
    name = f"runner-test-{mark}"
    await engine.create_volume(name, {LABEL: mark})
    container = await engine.create(spec(mark, mounts=(Mount("volume", name, "/data"),)))
    with pytest.raises(Conflict):
        await engine.remove_volume(name)
    assert await engine.volume(name) is not None
    await engine.remove(container)
    assert await engine.volume(name) is not None  # it outlives its containers
    await engine.remove_volume(name)


# Images.


async def test_an_image_is_found_by_name_and_by_id(engine: Engine) -> None:
    by_name = await engine.image(DEFAULT_IMAGE)
    assert by_name is not None
    assert await engine.image(by_name.id) == by_name
    assert DEFAULT_IMAGE in by_name.tags
    assert (by_name.os, by_name.architecture) == ("linux", (await engine.version()).architecture)
    assert by_name.id in [image.id for image in await engine.images(LABEL_HASH)]
    digest = by_name.labels[LABEL_HASH]
    assert by_name.id in [image.id for image in await engine.images(f"{LABEL_HASH}={digest}")]


async def test_an_image_that_is_nowhere_is_none_and_no_registry_has_it(engine: Engine) -> None:
    assert await engine.image("runner-test/none:none") is None
    assert await engine.images("runner-test.none") == []
    assert await engine.pull("localhost:1/runner-test/none:none") is False
    await engine.remove_image("runner-test/none:none")
    with pytest.raises(NotFound):
        await engine.tag("runner-test/none:none", "runner-test/other:none")


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


async def test_an_imported_image_has_its_names_and_labels_until_it_is_removed(
    engine: Engine, mark: str, tmp_path: Path
) -> None:
    (tmp_path / "root.tar").write_bytes(archive(file=mark.encode()))
    ref, other = f"runner-test/{mark}:one", f"runner-test/{mark}:two"
    labels = {LABEL: mark, "words": 'a "quoted" \\ value'}
    made = await engine.import_image(tmp_path / "root.tar", ref, labels)
    assert made.labels == labels
    assert made.tags == (ref,)
    await engine.tag(ref, other)
    both = await engine.image(other)
    assert both is not None
    assert (both.id, set(both.tags)) == (made.id, {ref, other})
    await engine.remove_image(ref)
    assert await engine.image(ref) is None
    left = await engine.image(other)
    assert left is not None
    assert left.tags == (other,)
    await engine.remove_image(other)
    assert await engine.images(f"{LABEL}={mark}") == []


async def test_an_image_that_is_in_use_or_has_more_names_is_not_removed(
    engine: Engine, mark: str, tmp_path: Path
) -> None:
    (tmp_path / "root.tar").write_bytes(archive(file=mark.encode()))
    refs = [f"runner-test/{mark}-{n}:x" for n in range(2)]
    made = await engine.import_image(tmp_path / "root.tar", refs[0], {LABEL: mark})
    container = await engine.create(spec(mark, image=refs[0]))
    with pytest.raises(Conflict):
        await engine.remove_image(refs[0])
    await engine.remove(container)
    await engine.tag(refs[0], refs[1])
    with pytest.raises(Conflict):
        await engine.remove_image(made.id)
    await engine.remove_image(refs[0])
    await engine.remove_image(made.id)
    assert await engine.image(made.id) is None


async def test_a_name_moves_to_the_image_that_gets_it(
    engine: Engine, mark: str, tmp_path: Path
) -> None:
    refs = [f"runner-test/{mark}:{n}" for n in range(2)]
    for n, ref in enumerate(refs):
        (tmp_path / "root.tar").write_bytes(archive(file=b"%d" % n))
        await engine.import_image(tmp_path / "root.tar", ref, {LABEL: mark})
    first = await engine.image(refs[0])
    await engine.tag(refs[0], refs[1])
    second = await engine.image(refs[1])
    assert first is not None
    assert second is not None
    assert second.id == first.id


async def test_an_image_is_built_from_an_archive_with_its_progress_told(
    engine: Engine, mark: str
) -> None:
    ref = f"runner-test/{mark}:built"
    lines: list[str] = []
    made = await engine.build(
        archive(Dockerfile=b"FROM scratch\nARG WHAT\nLABEL what=$WHAT\nCOPY Dockerfile /\n"),
        ref,
        labels={LABEL: mark},
        arguments={"WHAT": "this"},
        on_line=lines.append,
    )
    assert made.labels[LABEL] == mark
    assert made.tags == (ref,)
    assert lines
