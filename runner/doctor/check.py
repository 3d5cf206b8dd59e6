"""What an answer is. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """What came of a check."""

    OK = "ok"
    WARNING = "warning"
    """Sessions work, but something is not as it should be."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    finding: str
    advice: str = ""
    """What to do about it, where there is something."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The same for programs. JSON values only."""
