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
from runner.errors import PolicyError
from runner.policy import Policy


@dataclass(frozen=True)
class Reason:
    """Why rows wait."""

    text: str
    holds: Callable[[], bool]


def _has_no_module(name: str) -> bool:
    return importlib.util.find_spec(name) is None


def _knows_no_path_rules() -> bool:
    try:
        Policy.parse("default: deny\nallow:\n  - {tool: read, path: '^/workspace(/|$)'}\n")
    except PolicyError:
        return True
    return False


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


PATH_RULES = Reason("policies have no rules for paths yet", _knows_no_path_rules)
LINKS = Reason("a link is judged by path rules, which are not there yet", _knows_no_path_rules)
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
    "PE-001": PATH_RULES,
    "PE-002": PATH_RULES,
    "PE-004": PATH_RULES,
    "PE-005": PATH_RULES,
    "PE-010": PATH_RULES,
    "PE-012": PATH_RULES,
    "PE-013": PATH_RULES,
    "PE-014": PATH_RULES,
    "PE-015": PATH_RULES,
    "PE-016": PATH_RULES,
    "PE-017": PATH_RULES,
    "PE-018": LINKS,
    "PE-019": LINKS,
    "PE-020": LINKS,
    "PE-021": LINKS,
    "PE-022": LINKS,
    "PE-034": PATH_RULES,
    "PE-035": PATH_RULES,
    "PE-036": PATH_RULES,
    "PE-037": PATH_RULES,
    "PE-038": PATH_RULES,
    "PE-039": PATH_RULES,
    "PE-040": PATH_RULES,
    "PE-041": PATH_RULES,
    "PE-053": PATH_RULES,
    "RS-021": PATH_RULES,
}
"""Rows by id."""
