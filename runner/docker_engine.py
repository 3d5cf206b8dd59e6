"""Docker, and nothing but Docker: the only module that imports `docker`.

Containers, images and volumes by the daemon's API. Blocking calls run in threads. Transient
trouble with the daemon is retried for operations that may be repeated (`_again`), never for
the others. What docker-py and its HTTP library raise is translated here, once.
"""

import io
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
import docker
import docker.errors
import docker.utils
import requests.exceptions
import tenacity
import urllib3.exceptions

from runner.carrier import Carrier, DemultiplexingCarrier, SocketCarrier, ThreadedCarrier
from runner.engine import ContainerInfo, ContainerSpec, EngineVersion, ImageInfo, Mount, VolumeInfo
from runner.errors import Conflict, EngineError, EngineUnavailable, ImageBuildError, NotFound
from runner.logs import log

T = TypeVar("T")

MIN_API_VERSION = "1.41"
"""Docker Engine 20.10: private cgroup namespaces need it."""
REQUEST_TIMEOUT_S = 30
"""How long one answer of the daemon may take; a build or pull has no such limit."""
REMOVAL_S = 20.0
"""How long a removal that somebody else began is waited for."""
REMOVAL_STEP_S = 0.05


def container_config(spec: ContainerSpec) -> dict[str, Any]:
    """The body of Docker's create request (API 1.41) for a spec. Pure."""
    limits = [
        {"Name": "nofile", "Soft": spec.nofile, "Hard": spec.nofile},
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "fsize", "Soft": spec.file_size_bytes, "Hard": spec.file_size_bytes},
    ]
    relabelled = [mount for mount in spec.mounts if mount.selinux]
    host: dict[str, Any] = {
        "Binds": [_bind(mount) for mount in relabelled],
        "CapDrop": ["ALL"],
        "CgroupnsMode": "private",
        "Init": False,
        "IpcMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},
        "Memory": spec.memory_bytes,
        "MemorySwap": spec.memory_bytes,
        "Mounts": [_mount(mount) for mount in spec.mounts if not mount.selinux],
        "NanoCpus": int(spec.cpus * 1e9),
        "NetworkMode": spec.network,
        "PidsLimit": spec.pids,
        "Privileged": False,
        "ReadonlyRootfs": not spec.writable,
        "RestartPolicy": {"Name": "no"},
        "SecurityOpt": ["no-new-privileges:true"],
        "ShmSize": spec.shm_bytes,
        "Tmpfs": dict(spec.tmpfs),
        "Ulimits": limits,
    }
    if spec.runtime is not None:
        host["Runtime"] = spec.runtime
    if spec.capabilities:
        host["CapAdd"] = list(spec.capabilities)
    return {
        "Image": spec.image,
        "Entrypoint": list(spec.command[:1]),
        "Cmd": list(spec.command[1:]),
        "User": spec.user,
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "Labels": dict(spec.labels),
        "WorkingDir": spec.working_dir,
        "Hostname": spec.hostname,
        # A health check of the image would run inside the container, past every policy.
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": False,
        "Tty": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "HostConfig": host,
    }


def _mount(mount: Mount) -> dict[str, Any]:
    request: dict[str, Any] = {
        "Type": mount.kind,
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
    }
    if mount.kind == "bind":
        request["BindOptions"] = {"Propagation": "rprivate"}
    else:
        request["VolumeOptions"] = {"NoCopy": not mount.copy}
    return request


def _bind(mount: Mount) -> str:
    if ":" in mount.source:
        raise EngineError(
            f"a directory with a colon in its name can't be relabelled: {mount.source!r}"
        )
    access = "ro" if mount.read_only else "rw"
    return f"{mount.source}:{mount.target}:{access},{mount.selinux},rprivate"


class DockerEngine:
    """The Docker daemon that the environment names (`DOCKER_HOST`, …) or a given URL does.

    The first request connects; nothing happens before. `close` when done.
    """

    def __init__(self, url: str | None = None):
        self._url = url
        self._connected: docker.APIClient | None = None
        self._connecting = threading.Lock()
        self._version: EngineVersion | None = None

    # The daemon itself.

    def _client(self) -> docker.APIClient:
        with self._connecting:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def _connect(self) -> docker.APIClient:
        arguments = docker.utils.kwargs_from_env()
        if self._url is not None:
            arguments["base_url"] = self._url
        with _translated(self._where()):
            client = docker.APIClient(version="auto", timeout=REQUEST_TIMEOUT_S, **arguments)
        if docker.utils.version_lt(client.api_version, MIN_API_VERSION):
            client.close()
            raise EngineError(
                f"the Docker daemon speaks API {client.api_version};"
                " 1.41 (Docker Engine 20.10) or newer is needed"
            )
        return client

    def _where(self) -> str:
        given = self._url or docker.utils.kwargs_from_env().get("base_url")
        return str(given or "unix:///var/run/docker.sock")

    def _patient(self) -> docker.APIClient:
        """A client of its own for a request that may be silent for minutes."""
        arguments = docker.utils.kwargs_from_env()
        if self._url is not None:
            arguments["base_url"] = self._url
        version = self._client().api_version
        return docker.APIClient(version=version, timeout=None, **arguments)  # type: ignore[arg-type]

    async def _once(self, action: Callable[[docker.APIClient], T]) -> T:
        """Run a request that must not be repeated."""

        def run() -> T:
            where = self._where()
            with _translated(where):
                _knock(where)
            client = self._client()
            with _translated(where):
                return action(client)

        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)

    async def _again(self, action: Callable[[docker.APIClient], T]) -> T:
        """Run a request that changes nothing when repeated; try anew after transient trouble."""
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(3),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
            retry=tenacity.retry_if_exception(_is_transient),
            before_sleep=_log_retry,
            reraise=True,
        )
        return await attempts(self._once, action)

    async def version(self) -> EngineVersion:
        """See `Engine`. Asked once, then remembered."""
        if self._version is None:
            info = await self._again(lambda client: client.info())
            api_version = self._client().api_version
            options = tuple(info.get("SecurityOptions") or ())
            self._version = EngineVersion(
                server_version=info.get("ServerVersion", ""),
                api_version=str(api_version),
                os=info.get("OSType", ""),
                architecture=_ARCHITECTURES.get(
                    info.get("Architecture", ""), info.get("Architecture", "")
                ),
                kernel=info.get("KernelVersion", ""),
                runtimes=tuple(sorted(info.get("Runtimes") or ())),
                default_runtime=info.get("DefaultRuntime", ""),
                security_options=options,
                cgroup_version=str(info.get("CgroupVersion", "1")),
                storage_driver=info.get("Driver", ""),
                root_dir=info.get("DockerRootDir", ""),
                rootless=any("rootless" in option for option in options),
                local=self._where().startswith(("unix://", "http+unix://")),
                limits={
                    "memory": bool(info.get("MemoryLimit")),
                    "swap": bool(info.get("SwapLimit")),
                    "pids": bool(info.get("PidsLimit")),
                    "cpu": bool(info.get("CpuCfsQuota")),
                },
            )
        return self._version

    async def close(self) -> None:
        """See `Engine`."""
        if self._connected is not None:
            await anyio.to_thread.run_sync(self._connected.close)
            self._connected = None

    # Containers.

    async def create(self, spec: ContainerSpec) -> str:
        """See `Engine`."""
        config = container_config(spec)
        answer = await self._once(
            lambda client: client.create_container_from_config(  # type: ignore[no-untyped-call]
                config, spec.name
            )
        )
        return str(answer["Id"])

    async def start(self, container: str) -> None:
        """See `Engine`."""
        await self._once(lambda client: client.start(container))

    async def kill(self, container: str) -> None:
        """See `Engine`."""

        def kill(client: docker.APIClient) -> None:
            try:
                client.kill(container)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):  # gone, or not running
                    raise

        await self._again(kill)

    async def remove(self, container: str) -> None:
        """See `Engine`."""

        def remove(client: docker.APIClient) -> None:
            try:
                client.remove_container(container, force=True, v=True)
            except docker.errors.APIError as error:
                if error.status_code == 409:  # another request is removing it already
                    _await_removal(client, container)
                elif error.status_code != 404:
                    raise

        await self._again(remove)

    async def container(self, container: str) -> ContainerInfo | None:
        """See `Engine`."""
        try:
            answer = await self._again(lambda client: client.inspect_container(container))
        except NotFound:
            return None
        state = answer["State"]
        return ContainerInfo(
            id=answer["Id"],
            name=answer["Name"].lstrip("/"),
            image=answer["Config"]["Image"],
            labels=answer["Config"].get("Labels") or {},
            state=state["Status"],
            pid=state.get("Pid", 0),
            exit_code=None if state.get("Running") else state.get("ExitCode"),
            oom_killed=bool(state.get("OOMKilled")),
        )

    async def containers(self, labels: Mapping[str, str]) -> list[ContainerInfo]:
        """See `Engine`."""
        wanted = [f"{key}={value}" if value else key for key, value in labels.items()]
        rows = await self._again(
            lambda client: client.containers(all=True, filters={"label": wanted})
        )
        return [
            ContainerInfo(
                id=row["Id"],
                name=(row.get("Names") or [""])[0].lstrip("/"),
                image=row["Image"],
                labels=row.get("Labels") or {},
                state=row["State"],
            )
            for row in rows
        ]

    async def attach(self, container: str) -> Carrier:
        """See `Engine`."""
        parameters = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "logs": 0}
        answer = await self._once(lambda client: client.attach_socket(container, params=parameters))
        connection = getattr(answer, "_sock", answer)
        early = _read_ahead(answer, connection)
        if isinstance(connection, socket.socket) and not isinstance(connection, ssl.SSLSocket):
            # The response object owns the descriptor; a duplicate outlives it.
            plain = connection.dup()
            getattr(answer, "_response", answer).close()  # all of its readers, from the top
            connection.close()
            return DemultiplexingCarrier(await SocketCarrier.over(plain, early))
        return DemultiplexingCarrier(ThreadedCarrier(answer, early))

    # Images.

    async def image(self, ref: str) -> ImageInfo | None:
        """See `Engine`."""
        try:
            answer = await self._again(
                lambda client: client.inspect_image(ref)  # type: ignore[no-untyped-call]
            )
        except NotFound:
            return None
        config = answer.get("Config") or {}
        return ImageInfo(
            id=answer["Id"],
            tags=tuple(answer.get("RepoTags") or ()),
            architecture=answer.get("Architecture", ""),
            os=answer.get("Os", ""),
            labels=config.get("Labels") or {},
            size_bytes=answer.get("Size", 0),
            created=answer.get("Created", ""),
            volumes=tuple(config.get("Volumes") or ()),
        )

    async def images(self, label: str) -> list[ImageInfo]:
        """See `Engine`."""
        rows = await self._again(lambda client: client.images(filters={"label": label}))
        found = [await self.image(row["Id"]) for row in rows]
        return [image for image in found if image is not None]

    async def pull(self, ref: str) -> bool:
        """See `Engine`."""
        repository, _, tag = ref.rpartition(":") if ":" in ref.rsplit("/", 1)[-1] else (ref, "", "")
        try:
            await self._once(lambda client: client.pull(repository, tag=tag or "latest"))
        except (NotFound, EngineError) as error:
            if isinstance(error, EngineUnavailable):
                raise
            log.debug("image.pull.failed", image=ref, error=str(error))
            return False
        return await self.image(ref) is not None

    async def import_image(self, archive: Path, ref: str, labels: Mapping[str, str]) -> ImageInfo:
        """See `Engine`."""
        changes = [f"LABEL {json.dumps(key)}={json.dumps(value)}" for key, value in labels.items()]
        repository, _, tag = ref.rpartition(":")

        def send(client: docker.APIClient) -> None:
            with self._patient() as slow, archive.open("rb") as file:
                answer = slow.import_image_from_data(
                    file, repository=repository, tag=tag, changes=changes
                )
            _raise_stream_error(answer)

        await self._once(send)
        return await self._existing(ref)

    async def build(
        self,
        context: bytes,
        ref: str,
        *,
        labels: Mapping[str, str],
        arguments: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> ImageInfo:
        """See `Engine`."""

        def run(client: docker.APIClient) -> list[str]:
            tail: list[str] = []
            with self._patient() as slow:
                for part in slow.build(
                    fileobj=io.BytesIO(context),
                    custom_context=True,
                    tag=ref,
                    labels=dict(labels),
                    buildargs=dict(arguments),
                    rm=True,
                    forcerm=True,
                    decode=True,
                ):
                    text = str(part.get("stream") or part.get("error") or "")
                    for line in _COLOURS.sub("", text).splitlines():
                        if line.strip():
                            tail = [*tail[-39:], line]
                            on_line(line)
                    if "error" in part:
                        failure = ImageBuildError(f"building {ref} failed: {part['error']}")
                        failure.add_note("\n".join(tail))
                        raise failure
            return tail

        await self._once(run)
        return await self._existing(ref)

    async def _existing(self, ref: str) -> ImageInfo:
        image = await self.image(ref)
        if image is None:
            raise ImageBuildError(f"the daemon has no image {ref} although it said it made it")
        return image

    async def tag(self, ref: str, new_ref: str) -> None:
        """See `Engine`."""
        repository, _, tag = new_ref.rpartition(":")
        await self._again(lambda client: client.tag(ref, repository, tag, force=True))

    async def remove_image(self, ref: str) -> None:
        """See `Engine`."""
        try:
            await self._again(lambda client: client.remove_image(ref))
        except NotFound:
            return

    # Volumes.

    async def volume(self, name: str) -> VolumeInfo | None:
        """See `Engine`."""
        try:
            answer = await self._again(lambda client: client.inspect_volume(name))
        except NotFound:
            return None
        return VolumeInfo(answer["Name"], answer.get("Labels") or {})

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """See `Engine`."""
        await self._again(lambda client: client.create_volume(name, labels=dict(labels)))

    async def remove_volume(self, name: str) -> None:
        """See `Engine`."""
        try:
            await self._again(lambda client: client.remove_volume(name))
        except NotFound:
            return

    async def volumes(self, label: str) -> list[VolumeInfo]:
        """See `Engine`."""
        answer = await self._again(lambda client: client.volumes(filters={"label": label}))
        rows = answer.get("Volumes") or []
        return [VolumeInfo(row["Name"], row.get("Labels") or {}) for row in rows]


def _knock(where: str) -> None:
    """Connect to a local daemon and hang up: docker-py leaves a socket open where it can't."""
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(REQUEST_TIMEOUT_S)
            connection.connect("/" + where.removeprefix("unix://").lstrip("/"))


def _await_removal(client: docker.APIClient, container: str) -> None:
    """Return when a container is gone, and its name free."""
    give_up = time.monotonic() + REMOVAL_S
    while time.monotonic() < give_up:
        try:
            client.inspect_container(container)
        except docker.errors.NotFound:
            return
        time.sleep(REMOVAL_STEP_S)
    raise Conflict(f"container {container} is still being removed after {REMOVAL_S:g} s")


def _read_ahead(answer: Any, connection: Any) -> bytes:
    """What the container had sent already when the daemon's answer was read.

    It came with the answer's head and is in the HTTP reader's buffer, not in the connection.
    """
    response = getattr(answer, "_response", None)
    if response is None or not isinstance(connection, socket.socket):
        return b""
    timeout_s = connection.gettimeout()
    connection.setblocking(False)  # an empty buffer would be filled, for as long as that takes
    try:
        return bytes(response.raw._fp.fp.peek())
    except (BlockingIOError, ssl.SSLWantReadError):
        return b""
    finally:
        connection.settimeout(timeout_s)


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The classic builder reddens what a step writes to standard error."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _raise_stream_error(answer: str) -> None:
    for line in answer.splitlines():
        message = json.loads(line)
        if "error" in message:
            raise EngineError(str(message["error"]))


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, EngineError) and error.transient


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning("engine.retry", attempt=state.attempt_number, error=str(error))


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Turn what docker-py and its HTTP library raise into this package's errors."""
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise NotFound(_explanation(error)) from error
    except docker.errors.NotFound as error:
        raise NotFound(_explanation(error)) from error
    except docker.errors.APIError as error:
        if error.status_code == 409:
            raise Conflict(f"Docker refused: {_explanation(error)}") from error
        raise _refused(_explanation(error), error.status_code) from error
    except KeyError as error:
        # docker-py looks for a message in every refusal, also in one that is a proxy's.
        answer = getattr(error.__context__, "response", None)
        raise _refused(str(error.__context__), getattr(answer, "status_code", None)) from error
    except (
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        docker.errors.DockerException,
        OSError,
    ) as error:
        raise _unreachable(where, error) from error


def _refused(explanation: str, status: int | None) -> EngineError:
    failure = EngineError(f"Docker refused: {explanation}")
    failure.transient = status in (502, 503, 504)
    return failure


def _explanation(error: docker.errors.APIError) -> str:
    return str(error.explanation or error)


def _unreachable(where: str, error: BaseException) -> EngineUnavailable:
    text = str(error)
    failure = EngineUnavailable(f"the Docker daemon at {where} can't be reached: {text}")
    if "PermissionError" in text or "Permission denied" in text:
        failure = EngineUnavailable(
            f"no permission to talk to the Docker daemon at {where}:"
            " add yourself to the group `docker` and log in again, or use sudo"
        )
        failure.transient = False
    elif "FileNotFoundError" in text or "No such file" in text:
        failure = EngineUnavailable(
            f"there is no Docker daemon at {where}: install Docker Engine"
            " (Debian and Ubuntu: `apt-get install docker.io`), start it"
            " (`systemctl start docker`, or `dockerd`), or set DOCKER_HOST"
        )
        failure.transient = False
    elif "ConnectionRefused" in text or "Connection refused" in text:
        failure = EngineUnavailable(
            f"the Docker daemon at {where} does not answer:"
            " start it (`systemctl start docker`, or `dockerd`), or set DOCKER_HOST"
        )
    return failure
