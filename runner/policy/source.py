"""Where the policy of the moment comes from: fixed, or files that are read anew when they change.

A change is taken whole or not at all: until the new text is a policy, the old one holds.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from runner.errors import PolicyError
from runner.logs import log
from runner.policy.policy import Policy

LOOK_EVERY_S = 0.5
"""How long a change may go unseen: looking costs a system call for each file."""

Stamp = tuple[tuple[int, int, int, int] | None, ...]


class PolicySource(Protocol):
    """Something that has a policy."""

    @property
    def current(self) -> Policy:
        """The policy that decides the next call."""

    @property
    def files(self) -> tuple[str, ...]:
        """What it is read from."""


class FixedPolicy:
    """A policy that stays what it is."""

    def __init__(self, policy: Policy):
        self.current = policy
        self.files = policy.files


class PolicyFile:
    """A policy file, and those that it includes, watched for changes.

    Args:
        path: The file.
        clock: Seconds that never go back.

    Raises:
        PolicyError: It can't be loaded.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.monotonic
    ):
        self._path = os.path.abspath(path)
        self._clock = clock
        self._policy = Policy.load(self._path)
        self._stamp = _stamp(self._policy.files)
        self._looked = clock()
        self.trouble: PolicyError | None = None
        """Why the files as they are now are not used; None where they are."""

    @property
    def files(self) -> tuple[str, ...]:
        """The file, and those that it includes or shadows."""
        return self._policy.files

    @property
    def current(self) -> Policy:
        """The policy as the files have it; where they can't be loaded, as they last could."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            stamp = _stamp(self._policy.files)
            if stamp != self._stamp:
                self._stamp = stamp
                self._reload()
        return self._policy

    def _reload(self) -> None:
        before = self._policy.digest
        try:
            policy = Policy.load(self._path)
        except PolicyError as error:
            self.trouble = error
            log.error("policy.reload_failed", error=str(error), still=before)
            return
        self.trouble = None
        self._policy = policy
        self._stamp = _stamp(policy.files)
        log.warning("policy.reloaded", policy=policy.name, digest=policy.digest, before=before)


def _stamp(files: Iterable[str]) -> Stamp:
    """What changes with a file's content; None for one that is not there."""
    stamps: list[tuple[int, int, int, int] | None] = []
    for name in files:
        try:
            status = Path(name).stat()
        except OSError:
            stamps.append(None)
            continue
        stamps.append((status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns))
    return tuple(stamps)
