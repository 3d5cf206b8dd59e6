"""The settings: one frozen model, read once from arguments, the environment and a file.

The only reader of the environment (`RUNNER_*`; docker's own variables are docker's). Later
sources give way to earlier ones: arguments, environment, the TOML file, defaults.
"""

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
import pydantic
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from runner.errors import ConfigurationError

APPLICATION = "rousseau-runner"
MIN_TOKEN_CHARACTERS = 16

Bytes = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _file() -> Path:
    """Where the file of settings is, if there is one."""
    given = os.environ.get("RUNNER_CONFIG")
    return Path(given) if given else platformdirs.user_config_path(APPLICATION) / "config.toml"


def _words(problem: Any) -> str:
    """What is wrong with a value, of which nothing is shown: it may be a secret."""
    if problem["type"] == "extra_forbidden":
        return "there is no such setting"
    return str(problem["msg"]).removeprefix("Value error, ")


def _runtime_dir() -> Path:
    """A short path, private to this user: a Unix socket's may have 107 bytes."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_dir():
        return Path(given) / APPLICATION
    return Path(tempfile.gettempdir()) / f"{APPLICATION}-{os.getuid()}"


class Limits(BaseModel):
    """What one session's container may use."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    memory_bytes: Bytes = 512 * 1024**2
    """Memory, tmpfs included, without any swap."""
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Share of processors."""
    pids: Annotated[int, Field(ge=16)] = 256
    """Processes and threads at once, the helper's own included."""
    nofile: Annotated[int, Field(ge=64)] = 1024
    """Open files per process."""
    file_size_bytes: Bytes = 1024**3
    """The largest file that a process may write."""
    tmp_bytes: Bytes = 128 * 1024**2
    """Size of /tmp, and of /var/tmp, in memory."""
    home_bytes: Bytes = 64 * 1024**2
    """Size of the home directory, in memory."""


class Credential(BaseModel):
    """A secret that the host adds to requests of containers, which never see it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str
    """The host it is meant for: a name, exactly."""
    header: str = "Authorization"
    """The header that is set."""
    value: SecretStr
    """The header's value, such as `Bearer …`."""
    ports: tuple[Annotated[int, Field(gt=0, lt=65536)], ...] = (443,)
    """The ports it is sent to."""
    plain_http: bool = False
    """It is also added where nothing encrypts it on its way: to requests in plain HTTP."""
    methods: tuple[str, ...] = ()
    """HTTP methods it is added to; none named: all."""
    paths: tuple[str, ...] = ()
    """Globs over paths it is added to; none named: all."""


Network = Literal["none", "allowlist", "open"]


class Settings(BaseSettings):
    """Everything that can be set. Every field is also the variable `RUNNER_<FIELD>`."""

    model_config = SettingsConfigDict(
        env_prefix="RUNNER_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # it may be a secret
    )

    data_dir: Path = Field(default_factory=lambda: platformdirs.user_data_path(APPLICATION))
    """Records and managed workspaces. Default: the user's data directory (XDG)."""
    cache_dir: Path = Field(default_factory=lambda: platformdirs.user_cache_path(APPLICATION))
    """What can be fetched again, such as the helper's wheel."""
    runtime_dir: Path = Field(default_factory=_runtime_dir)
    """Sockets of running sessions."""
    docker_host: str | None = None
    """The daemon's URL. Default: what docker's own variables say, else the local socket."""
    image: str = "sandbox"
    """The session image: `sandbox` is the one that the runner builds."""
    runtime: str | None = None
    """The daemon's runtime for sessions, such as `runsc`. Default: the daemon's default."""
    carrier: Literal["auto", "socket", "attach"] = "auto"
    """How frames reach the container: a Unix socket, Docker's attach stream, or what works."""
    timeout_s: Seconds = 60.0
    """Time limit of a call, in seconds, unless the call or its session has its own."""
    max_timeout_s: Seconds = 3600.0
    """The longest limit that a call may ask for."""
    approval_timeout_s: Seconds = 600.0
    """How long a call waits for a person's answer where the policy asks. Then it is denied."""
    idle_timeout_s: Seconds = 1800.0
    """A session that is not used for this long is closed."""
    ttl_s: Seconds = 8 * 3600.0
    """A session is closed after this, used or not."""
    limits: Limits = Limits()
    tmp_noexec: bool = False
    """Nothing in /tmp, /var/tmp and the home directory can be executed. Breaks many build tools."""
    output_limit_bytes: Annotated[int, Field(ge=1024)] = 1024**2
    """Output of one call that comes back; the rest stays in the container."""
    read_limit_bytes: Annotated[int, Field(ge=1024, le=16 * 1024**2)] = 16 * 1024**2
    """The largest file that `read` and `edit` take."""
    grep_max_matches: Annotated[int, Field(ge=1)] = 200
    """Rows after which a search stops."""
    background: Literal["keep", "kill"] = "keep"
    """What becomes of processes that a command leaves running: until the session ends, or none."""
    selinux: Literal["", "z", "Z"] = ""
    """Relabel the workspace for SELinux: shared or private."""
    network: Network = "none"
    """What programs in a session reach through the runner's proxy: nothing, what the policy's
    `network` rules allow, or every public address. No container has a network of its own."""
    credentials: dict[str, Credential] = Field(default_factory=dict)
    """Secrets, by name, that are added to matching requests on the host."""
    intercept: tuple[str, ...] = ()
    """Hosts whose HTTPS the runner opens, so that rules see requests and credentials are added:
    exact names, or `*.name`. Sessions trust a certificate authority of their own for it."""
    max_connections: Annotated[int, Field(ge=1, le=64)] = 32
    """Connections of one session at once."""
    max_connection_s: Seconds = 600.0
    """How long one connection may last."""
    max_transfer_bytes: Bytes = 1024**3
    """What a session may send and receive, all connections together."""

    mcp_token: SecretStr | None = None
    """What clients of `runner mcp --http` must show as their bearer token, 16 characters at least.
    Without one the server listens on this machine's own addresses only."""
    mcp_max_sessions: Annotated[int, Field(ge=1)] = 16
    """Sessions that one MCP server has open at once."""
    mcp_progress_s: Seconds = 5.0
    """How often a client of the MCP server hears of a call that takes long."""

    @field_validator("mcp_token")
    @classmethod
    def _long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token) < MIN_TOKEN_CHARACTERS:
            raise ValueError(
                f"{len(token)} characters are too few: {MIN_TOKEN_CHARACTERS} at least, such as"
                " those that `openssl rand -hex 32` prints"
            )
        return token

    @field_validator("data_dir", "cache_dir", "runtime_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return Path(os.path.abspath(path.expanduser()))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, environment, file: no .env, no secrets directory."""
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, toml_file=_file()),
        )

    @classmethod
    def read(cls, **arguments: Any) -> "Settings":
        """Settings from all sources; arguments that are None count as not given.

        Raises:
            ConfigurationError: A value can't be used, a name is unknown, or the file named
                by `RUNNER_CONFIG` is missing or not TOML.
        """
        given = os.environ.get("RUNNER_CONFIG")
        if given and not Path(given).is_file():
            raise ConfigurationError(f"RUNNER_CONFIG names no file: {given}")
        try:
            return cls(**{name: value for name, value in arguments.items() if value is not None})
        except pydantic.ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc']))}: {_words(problem)}"
                for problem in error.errors()
            )
            raise ConfigurationError(f"settings: {problems}") from error
        except SettingsError as error:
            raise ConfigurationError(
                f"settings: {error}: a variable has lists and tables as JSON, such as"
                """ RUNNER_INTERCEPT='["api.example.com"]'"""
            ) from error
        except ValueError as error:  # the file is not TOML
            raise ConfigurationError(f"settings: {_file()}: {error}") from error
