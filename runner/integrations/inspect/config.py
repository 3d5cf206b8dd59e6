"""What can be configured of the sandboxes that Inspect opens, in Python or in a TOML file."""

import tomllib
from pathlib import Path
from typing import Annotated

import pydantic
from inspect_ai._util.error import PrerequisiteError
from pydantic import BaseModel, ConfigDict, Field

from runner.settings import Limits, Network

CONFIG_FILE = "rousseau.toml"
"""Found by itself in a task's directory."""
DAY_S = 24 * 3600.0

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RousseauConfig(BaseModel):
    """A task's, or a sample's, sandbox. What is not said here is as the runner's settings say."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policy: str = "default"
    """The policy for all that is executed in the sandbox: a shipped one's name, or a file.
    `default` lets `exec` run anything, since Inspect's own commands, those of setup scripts and
    those of scorers come this way too; what bounds them is the container. To judge what the
    model asks for, and only that, use the approver."""
    image: str | None = None
    """The image; None: the setting `image`. Anything with a `/bin/sh` will do for `exec`."""
    network: Network = "none"
    """What programs reach: nothing, what the policy's `network` rules allow, or every public
    address."""
    users: bool = False
    """`exec(user=…)` works, root included, at the price of a container that is less closed."""
    runtime: str | None = None
    """The daemon's runtime, such as `runsc`; None: the setting `runtime`."""
    limits: Limits | None = None
    """What a container may use; None: the setting `limits`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for everything that is executed."""
    ttl_s: Seconds = DAY_S
    """A sandbox is closed after this, in seconds, whatever its sample does."""
    kept: bool = False
    """With `--no-sandbox-cleanup`, sandboxes outlive the evaluation. Without that option they
    are closed with their sample, whatever this says."""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @classmethod
    def read(cls, path: str) -> "RousseauConfig":
        """A configuration from a TOML file with the fields of this class.

        A relative `policy` that is no shipped policy's name is looked up beside the file.

        Raises:
            PrerequisiteError: The file can't be read, is not TOML, or says what no field means.
        """
        try:
            with open(path, "rb") as file:
                config = cls.model_validate(tomllib.load(file))
        except (OSError, ValueError) as error:
            raise PrerequisiteError(f"{path}: {_words(error)}") from error
        beside = Path(path).parent / config.policy
        return config.model_copy(update={"policy": str(beside)}) if beside.is_file() else config

    @classmethod
    def resolve(cls, config: BaseModel | str | None) -> "RousseauConfig":
        """The configuration that Inspect hands over: one, a file that holds one, or none.

        Raises:
            PrerequisiteError: It is for another kind of sandbox, or the file can't be used.
        """
        if config is None:
            return cls()
        if isinstance(config, str):
            return cls.read(config)
        if isinstance(config, cls):
            return config
        raise PrerequisiteError(
            f"the sandbox `rousseau` takes a RousseauConfig, not a {type(config).__name__}"
        )


def _words(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
    return str(error)
