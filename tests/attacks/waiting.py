"""The rows of the corpus that wait for parts of the project that do not exist yet.

Each reason comes with a look at whether it still holds: when the part is built, the look says
so, a test fails, and its rows have to be run.
"""

import importlib.util
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from runner import Settings


@dataclass(frozen=True)
class Reason:
    """Why rows wait."""

    text: str
    holds: Callable[[], bool]


def _has_no_module(name: str) -> bool:
    return importlib.util.find_spec(name) is None


def _redacts_nothing() -> bool:
    return not any("redact" in name for name in Settings.model_fields)


def _daemon_maps_no_users() -> bool:
    found = subprocess.run(
        ["docker", "info", "--format", "{{json .SecurityOptions}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return not any("userns" in option for option in json.loads(found.stdout))


PAGE = Reason("there is no web page that could show it", lambda: _has_no_module("runner.http_api"))
EVENTS = Reason("nothing sends server-sent events", lambda: _has_no_module("runner.http_api"))
REDACTION = Reason("there is no redaction that could be on", _redacts_nothing)
USERS = Reason(
    "a user namespace is the daemon's to give (`userns-remap`); Debian's gVisor shows none either",
    _daemon_maps_no_users,
)

WAITING: dict[str, Reason] = {
    "CE-005": USERS,
    "OU-012": PAGE,
    "OU-015": EVENTS,
    "OU-016": REDACTION,
}
"""Rows by id."""
