"""Sandboxes for Inspect: what its contract leaves open, what we add to it, and their life."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    override_sandbox_output_limit,
)
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

from runner import AsyncRunner, Settings
from runner.app import open_store
from runner.integrations.inspect import RousseauConfig, RousseauSandboxEnvironment
from runner.integrations.inspect.environment import COMMAND_LIMIT_BYTES, INPUT_LIMIT_BYTES
from runner.integrations.inspect.runners import runners
from tests.conftest import make_settings
from tests.host import ROOT, containers, docker

from .sandboxes import opened, records_in

pytestmark = [pytest.mark.docker, pytest.mark.anyio]

Sandbox = RousseauSandboxEnvironment


@pytest.fixture(scope="module")
async def shared(
    docker_daemon: None, shared_data_dir: Path, anyio_backend: str
) -> AsyncIterator[Sandbox]:
    async with opened(RousseauConfig(), shared_data_dir) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(shared: Sandbox) -> Sandbox:
    return shared


def test_inspect_finds_it_by_its_name() -> None:
    entry_points(group="inspect_ai")["rousseau_runner"].load()

    assert registry_find_sandboxenv("rousseau") is RousseauSandboxEnvironment
    assert RousseauSandboxEnvironment.config_files() == ["rousseau.toml"]
    assert not RousseauSandboxEnvironment.is_docker_compatible()
    assert (RousseauSandboxEnvironment.default_concurrency() or 0) >= 2


# Executing.


async def test_nothing_runs_as_another_user_unless_that_is_configured(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxUserUnsupportedError, match="users=True"):
        await self_check.test_exec_as_user(sandbox)


@pytest.mark.parametrize("program", ["echo", "printf"])
async def test_a_program_is_one_of_the_path_and_no_word_of_the_shell(
    sandbox: Sandbox, program: str
) -> None:
    result = await sandbox.exec(["which", program])

    assert result.stdout.strip().startswith("/")
    assert (await sandbox.exec(["echo", r"a\tb"])).stdout == "a\\tb\n"
    for word in ("cd", "if", "A=b"):
        assert (await sandbox.exec([word, "/"])).returncode == 127


async def test_a_program_that_is_not_there_is_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["no-such-program"])

    assert (result.success, result.returncode) == (False, 127)
    assert "not found" in result.stderr


async def test_a_directory_that_is_not_there_is_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["true"], cwd="nowhere")

    assert not result.success
    assert "no such file or directory" in result.stderr


async def test_what_the_programs_own_shell_may_not_execute_is_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["bash", "-c", "/etc/passwd"])

    assert result.returncode == 126
    assert "Permission denied" in result.stderr


async def test_nothing_to_execute_is_an_error_of_the_caller(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="empty"):
        await sandbox.exec([])
    with pytest.raises(ValueError, match="NUL"):
        await sandbox.exec(["echo", "a\0b"])


async def test_what_was_written_until_the_time_limit_is_kept(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutError, match="after 1 seconds") as caught:
        await sandbox.exec(["sh", "-c", "echo out; echo err >&2; sleep 60"], timeout=1)

    assert getattr(caught.value, "truncated_output", None) == "out\nerr\n"


@pytest.mark.parametrize("stream", ["", " >&2"])
async def test_output_over_the_limit_is_an_error_with_its_end(
    sandbox: Sandbox, stream: str
) -> None:
    command = ["sh", "-c", f"(head -c 11000000 /dev/zero | tr '\\0' x; echo end){stream}"]

    with pytest.raises(OutputLimitExceededError, match="10 MiB") as caught:
        await sandbox.exec(command)

    assert (caught.value.truncated_output or "").endswith("xxxend\n")


async def test_a_limit_that_is_lowered_for_a_while_holds(sandbox: Sandbox) -> None:
    with override_sandbox_output_limit(4), pytest.raises(OutputLimitExceededError) as caught:
        await sandbox.exec(["echo", "123456"])

    assert caught.value.truncated_output == "456\n"


async def test_a_limit_that_is_raised_for_a_while_holds(sandbox: Sandbox) -> None:
    command = ["sh", "-c", "head -c 11000000 /dev/zero | tr '\\0' x; echo err >&2"]

    with override_sandbox_output_limit(12_000_000):
        result = await sandbox.exec(command)
        assert (await sandbox.exec(["no-such-program"])).returncode == 127
        with pytest.raises(OutputLimitExceededError):
            await sandbox.exec(["head", "-c", "12000001", "/dev/zero"])

    assert (len(result.stdout), result.stderr) == (11_000_000, "err\n")
    assert ".inspect-" not in (await sandbox.exec(["ls", "-A", "/tmp"])).stdout


async def test_what_is_too_large_for_a_call_goes_by_files_that_do_not_stay(
    sandbox: Sandbox,
) -> None:
    argument = "x" * (COMMAND_LIMIT_BYTES // 10)
    input = "y" * (INPUT_LIMIT_BYTES + 1)

    result = await sandbox.exec(
        ["sh", "-c", "echo $# $(wc -c); ls -A /tmp; exit 3", "sh", *[argument] * 20], input=input
    )
    after = await sandbox.exec(["ls", "-A", "/tmp"])

    assert result.returncode == 3
    assert result.stdout.startswith(f"20 {len(input)}\n.inspect-")
    assert ".inspect-" not in after.stdout


async def test_a_sandbox_that_is_lost_is_unavailable_and_the_next_command_gets_a_new_one(
    sandbox: Sandbox,
) -> None:
    running = asyncio.create_task(sandbox.exec(["sh", "-c", "touch started; exec sleep 60"]))
    while not (await sandbox.exec(["ls", "started"])).success:
        pass
    await asyncio.to_thread(docker, "kill", f"rousseau-runner-{sandbox.session.id}")

    with pytest.raises(SandboxUnavailableError, match="container"):
        await running

    assert (await sandbox.exec(["rm", "started"])).success


async def test_the_policy_of_the_configuration_holds_and_all_is_recorded(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        'mode: pattern\ndefault: allow\ndeny: [{tool: bash, command: "^rm "}]\nreason: "keep it"\n'
    )
    async with opened(RousseauConfig(policy=str(policy)), tmp_path / "data") as sandbox:
        await sandbox.write_file("a", "kept")

        with pytest.raises(PermissionError, match="keep it"):
            await sandbox.exec(["rm", "a"])
        with pytest.raises(PermissionError, match="keep it"):
            await sandbox.exec(["bash", "-c", "ls; rm a"])
        assert (await sandbox.exec(["cat", "a"])).stdout == "kept"

    with open_store(make_settings(tmp_path / "data")) as store:
        statuses = [call.status for _, call in store.calls(session_id=sandbox.session.id)]
        events = [row.event for row in store.audit_rows(session_id=sandbox.session.id)]
    assert statuses == ["denied", "denied", "ok"]
    assert "file.uploaded" in events


async def test_what_goes_by_files_is_judged_as_a_whole(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: allow\ndeny: [{tool: bash, match: secret}]\n")
    padding = "x" * COMMAND_LIMIT_BYTES
    # It is refused before it needs a container.
    async with AsyncRunner(policy, tools="extended", data_dir=tmp_path / "data") as runner:
        sandbox = Sandbox(runner, None, RousseauConfig())  # type: ignore[arg-type]
        with pytest.raises(PermissionError, match="denied by pattern policy"):
            await sandbox.exec(["echo", padding, "secret"])
        with pytest.raises(PermissionError, match="denied by pattern policy"):
            await sandbox.exec(["sh"], input="secret" + "\n" * INPUT_LIMIT_BYTES)


# Files.


async def test_files_are_put_and_had_as_they_are(sandbox: Sandbox) -> None:
    await sandbox.write_file("lines", "a\r\nb\n")
    await sandbox.write_file("bytes", b"\xff\0")

    assert await sandbox.read_file("lines") == "a\r\nb\n"
    assert await sandbox.read_file("/workspace/bytes", text=False) == b"\xff\0"
    with pytest.raises(UnicodeDecodeError):
        await sandbox.read_file("bytes")


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("/etc/passwd/below", FileNotFoundError),
        ("x" * 300, FileNotFoundError),
        ("/proc/1/mem", PermissionError),
        ("/dev/null", OSError),
        ("/tmp", IsADirectoryError),
    ],
)
async def test_a_file_that_can_not_be_had_is_an_error_that_names_it(
    sandbox: Sandbox, file: str, error: type[OSError]
) -> None:
    with pytest.raises(error) as caught:
        await sandbox.read_file(file)

    assert caught.value.filename == file


@pytest.mark.parametrize(
    ("file", "error"),
    [("/etc/new", PermissionError), ("/etc/passwd/new", FileNotFoundError), ("/", OSError)],
)
async def test_a_file_that_can_not_be_put_is_an_error_that_names_it(
    sandbox: Sandbox, file: str, error: type[OSError]
) -> None:
    with pytest.raises(error) as caught:
        await sandbox.write_file(file, "")

    assert caught.value.filename == file


# Configuration.


def test_a_configuration_can_be_a_file_with_its_policy_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "rousseau.toml"
    file.write_text('policy = "mine.yaml"\nnetwork = "open"\n[limits]\ncpus = 2.0\n')
    (tmp_path / "mine.yaml").write_text("mode: allow_all")

    config = RousseauConfig.resolve(str(file))

    assert config.policy == str(tmp_path / "mine.yaml")
    assert config.network == "open"
    assert config.limits is not None
    assert config.limits.cpus == 2.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [("polic = 1", "polic: Extra inputs"), ("= 1", "Invalid"), ('network = "all"', "network: ")],
)
def test_a_file_that_is_no_configuration_is_refused_in_words(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "rousseau.toml"
    file.write_text(text)

    with pytest.raises(PrerequisiteError) as caught:
        RousseauConfig.resolve(str(file))

    assert str(file) in str(caught.value.message)
    assert problem in str(caught.value.message)


def test_a_configuration_of_another_kind_is_refused() -> None:
    with pytest.raises(PrerequisiteError) as caught:
        RousseauConfig.resolve(Settings.read())

    assert "takes a RousseauConfig" in str(caught.value.message)


def test_a_configuration_survives_a_log_and_tells_sandboxes_apart() -> None:
    spec = SandboxEnvironmentSpec("rousseau", RousseauConfig(environment={"A": "b"}, users=True))

    again = SandboxEnvironmentSpec.model_validate_json(spec.model_dump_json())

    assert again.config == spec.config
    assert hash(again) == hash(spec)


# Life.


async def test_without_docker_the_task_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_DOCKER_HOST", "unix:///nowhere.sock")

    config = RousseauConfig(ttl_s=60)  # or else the runner would be that of the other tests
    with records_in(tmp_path / "data"):
        with pytest.raises(PrerequisiteError) as caught:
            await RousseauSandboxEnvironment.task_init("task", config)
        with pytest.raises(SandboxUnavailableError, match="Docker"):
            await RousseauSandboxEnvironment.sample_init("task", config, {})
        with pytest.raises(PrerequisiteError):
            await RousseauSandboxEnvironment.cli_cleanup(None)

    assert "Docker" in str(caught.value.message)


async def test_a_policy_that_is_not_there_stops_the_task(tmp_path: Path) -> None:
    config = RousseauConfig(policy="no-such-policy")

    with records_in(tmp_path / "data"), pytest.raises(PrerequisiteError) as caught:
        await RousseauSandboxEnvironment.task_init("task", config)

    assert "no-such-policy" in str(caught.value.message)


def test_another_event_loop_than_asyncios_is_refused() -> None:
    with pytest.raises(PrerequisiteError) as caught:
        runners()

    assert "INSPECT_ASYNC_BACKEND" in str(caught.value.message)


async def test_a_person_gets_into_the_container_as_the_connection_says(sandbox: Sandbox) -> None:
    connection = await sandbox.connection(user="0")

    assert connection.container is not None
    assert connection.command == (
        f"docker exec -it --user 0 --workdir /workspace {connection.container} /bin/sh"
    )
    shown = await asyncio.to_thread(docker, "exec", connection.container, "pwd")
    assert shown == "/"


async def test_samples_of_a_task_have_sandboxes_of_their_own_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    kind, data_dir = RousseauSandboxEnvironment, tmp_path / "data"
    config = RousseauConfig(ttl_s=60)  # or else the runner would be that of the other tests
    with records_in(data_dir):
        await kind.task_init("task", config)
        first, second = [await kind.sample_init("task", config, {}) for _ in range(2)]
        await first["default"].write_file("a", "")
        assert not (await second["default"].exec(["ls", "a"])).success
        assert len(containers(make_settings(data_dir))) == 2

        await kind.sample_cleanup("task", config, first, False)
        await kind.sample_cleanup("task", config, second, True)
        await kind.task_cleanup("task", config, True)

    assert containers(make_settings(data_dir)) == []


async def test_kept_sandboxes_outlive_an_evaluation_until_the_command_line_ends_them(
    tmp_path: Path,
) -> None:
    kind, data_dir = RousseauSandboxEnvironment, tmp_path / "data"
    config = RousseauConfig(kept=True)
    with records_in(data_dir):
        await kind.task_init("task", config)
        kept = [await kind.sample_init("task", config, {}) for _ in range(2)]
        first = kept[0]["default"].as_type(kind).session.id
        await kind.cli_cleanup(None)
        with pytest.raises(PrerequisiteError):
            await kind.cli_cleanup(first)
        assert len(containers(make_settings(data_dir))) == 2, "a running evaluation has them"

        await kind.task_cleanup("task", config, False)
        assert len(containers(make_settings(data_dir))) == 2

        await kind.cli_cleanup(first)
        assert len(containers(make_settings(data_dir))) == 1
        await kind.cli_cleanup(None)

    assert containers(make_settings(data_dir)) == []


# Whole evaluations.


def test_files_setup_and_what_inspect_puts_into_sandboxes_work(tmp_path: Path) -> None:
    environment = {**os.environ, "RUNNER_DATA_DIR": str(tmp_path / "data")}
    shown = subprocess.run(
        [sys.executable, "-m", "tests.integrations.evaluation", str(tmp_path / "logs")],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    said = json.loads(shown)
    assert said["status"] == "success", said["error"]
    assert said["remote"] == "abc\n"
    assert said["setup"].startswith("/tmp/")
    assert "ZeroDivisionError" in said["python"]
    assert said["python"].endswith("1\n")
    assert "abc\n" in said["bash_session"]
    assert said["bash"] == "abc\n"
    assert containers(make_settings(tmp_path / "data")) == []


def test_the_example_evaluates_with_inspects_own_tools_and_the_approver(tmp_path: Path) -> None:
    environment = {**os.environ, "RUNNER_DATA_DIR": str(tmp_path / "data")}
    shown = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "inspect_eval.py")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()

    assert shown == [
        "> bash: 21",
        "> text_editor: File created successfully at: /workspace/twice.py",
        "> bash: 42",
        "> bash: denied by the universal policy: work with the rights that you have, and say what"
        " is missing",
        "success C",
    ]
