"""Who a program runs as: users of the container, by its /etc/passwd and /etc/group.

A helper that may switch has root's rights at hand but not in effect: it does its own work, on
files above all, as the workspace's owner. `lock_into` sees to that once, at the start.

What is in those files may be anybody's writing: they are read with a bound, and a line that
makes no sense is passed over.
"""

import ctypes
import os
import struct
from typing import NamedTuple

from runner.helper import files

PASSWD = "/etc/passwd"  # noqa: S105  it holds none
GROUP = "/etc/group"
LIMIT_BYTES = 4 * 1024**2
"""Of either file."""
MOST_GROUPS = 64
"""As many the supervisor takes; further ones are left out."""
_HIGHEST = 2**32 - 2

_CAPABILITY_VERSION_3 = 0x20080522
_CAP_KILL = 5
_NO_VARIABLES: dict[bytes, bytes] = {}


class NoUser(Exception):
    """There is no such user, or programs can't be started as that one.

    Attributes:
        code: One of `wire.FAILURES`.
    """

    def __init__(self, code: str, detail: str):
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Switch(NamedTuple):
    """What starting a program as somebody takes."""

    who: str = "-"
    """As the supervisor reads it."""
    environment: dict[bytes, bytes] = _NO_VARIABLES
    """Variables of that user."""
    reads_scratch: bool = True
    """May read what this process keeps for its calls."""


STAY = Switch()


class Users:
    """Makes switches.

    Args:
        owner: Uid and gid that calls have unless they say otherwise, where this helper may
            start programs as any user; None: everything runs as this process does.
    """

    def __init__(self, owner: tuple[int, int] | None = None):
        self._owner = owner
        self._default = STAY if owner is None else Switch("{}:{}".format(*owner))

    def switch(self, user: str | None) -> Switch:
        """What it takes to run a program as `user`: a name or a number; None: as ever.

        Raises:
            NoUser: `no_user`: there is none. `permission_denied`: this helper can't switch.
        """
        if user is None:
            return self._default
        uid = os.geteuid()
        entry = _entry(user)
        if entry is None:
            if user == str(uid):
                return self._default
            raise NoUser("no_user", f"there is no user {user[:64]!r} in the container")
        if self._owner is None:
            if entry.uid == uid:
                return self._default
            raise NoUser(
                "permission_denied",
                f"can't run as user {user[:64]!r}: the session was not opened with `users`",
            )
        groups = [entry.gid, *(group for group in _groups(entry.name) if group != entry.gid)]
        who = ":".join(map(str, (entry.uid, *groups[:MOST_GROUPS])))
        name = os.fsencode(entry.name)
        return Switch(
            f"+{who}" if entry.uid == 0 else who,
            {b"HOME": os.fsencode(entry.home), b"USER": name, b"LOGNAME": name},
            reads_scratch=entry.uid in (0, uid),
        )


class _Entry(NamedTuple):
    """A line of /etc/passwd."""

    name: str
    uid: int
    gid: int
    home: str


def _entry(user: str) -> _Entry | None:
    for row in _rows(PASSWD, 6):
        name, _, uid, gid, _, home = row[:6]
        if user in (name, uid) and _is_id(uid) and _is_id(gid):
            return _Entry(name, int(uid), int(gid), home or "/")
    return None


def _groups(name: str) -> list[int]:
    return [int(row[2]) for row in _rows(GROUP, 4) if _is_id(row[2]) and name in row[3].split(",")]


def _rows(path: str, least: int) -> list[list[str]]:
    """The lines of such a file that have enough fields; none where it can't be read."""
    try:
        content = files.read(path, LIMIT_BYTES)
    except files.Failure:
        return []  # an image needs no users; those that are asked for are then not there
    rows = [line.split(":") for line in os.fsdecode(content).splitlines()]
    return [row for row in rows if len(row) >= least and row[0]]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _HIGHEST


def lock_into(owner: tuple[int, int]) -> None:
    """Work as the owner from now on; root's rights are for those who are started.

    Of the capabilities only that to end anybody's processes stays in effect. It must be done
    before there is a second thread.

    Raises:
        OSError: This is not root, or the kernel refused.
    """
    uid, gid = owner
    os.setgroups([gid])
    os.setresgid(0, gid, 0)
    os.setresuid(0, uid, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    sets = ctypes.create_string_buffer(24)
    if libc.capget(header, sets) == 0:
        low = struct.unpack_from("=III", sets.raw)
        high = struct.unpack_from("=III", sets.raw, 12)
        # Effective, permitted, inheritable; of the last nobody has any use.
        chosen = (low[1] & 1 << _CAP_KILL, low[1], 0, 0, high[1], 0)
        if libc.capset(header, struct.pack("=6I", *chosen)) == 0:
            return
    raise OSError(ctypes.get_errno(), "capset")
