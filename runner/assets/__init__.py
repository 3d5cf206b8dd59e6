"""Where the files are that travel with the code: Dockerfiles and shipped policies.

A wheel carries them inside this package; a checkout has them at its top, where people look
for them. It only says where they are, and reads nothing.
"""

from pathlib import Path
from typing import Literal

from runner.errors import ConfigurationError


def asset_dir(name: Literal["images", "policies"]) -> Path:
    """The folder of that name.

    Raises:
        ConfigurationError: There is none: the installation is incomplete.
    """
    installed = Path(__file__).parent
    checkout = installed.parent.parent
    for place in (installed, checkout):
        if (place / name).is_dir():
            return place / name
    raise ConfigurationError(
        f"this installation has no {name}/ (looked in {installed} and {checkout}); reinstall it"
    )
