"""How the helper starts: PID 1 of a session's container.

It takes one of two arguments: `--socket PATH` dials the host's Unix socket, again and again;
`--stdio` talks over the container's own standard streams. `--users=UID:GID` before it says that
this is root, whose calls may run as anybody, and whose own work is that user's. `supervisor
init` adds a word for each thing that the kernel lacks.
"""

import ctypes
import os
import re
import socket
import sys
from functools import partial
from typing import NoReturn

from runner.helper.processes import Family
from runner.helper.server import Server, Stream
from runner.helper.users import Users, lock_into

PR_SET_DUMPABLE = 4
USERS = re.compile(r"--users=(\d+):(\d+)")
LACKING = ("--seccomp=off", "--subreaper=off")
"""Words by which `supervisor init` says what the kernel lacks."""


def main(arguments: list[str]) -> NoReturn:
    """Lock this process, then serve as the arguments say. It ends with the container."""
    lacking = [word for word in arguments if word in LACKING]
    arguments = [word for word in arguments if word not in LACKING]
    owner = None
    if arguments and (named := USERS.fullmatch(arguments[0])):
        owner = int(named[1]), int(named[2])
        del arguments[0]
        lock_into(owner)
    # A child with the same uid could otherwise trace this process, read its memory, and open
    # its descriptors through /proc: the stream to the host among them.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")
    os.umask(0o022)
    facts = {
        "uid": os.geteuid(),
        "gid": os.getegid(),
        "shell": os.path.isfile("/bin/sh") and os.access("/bin/sh", os.X_OK),
        "python": sys.version.split()[0],
        "seccomp": "--seccomp=off" not in lacking,
    }
    family = Family(subreaper="--subreaper=off" not in lacking)
    serving = partial(Server, family=family, users=Users(owner), facts=facts)
    if arguments[:1] == ["--socket"] and len(arguments) == 2:
        path = arguments[1]
        _occupy_standard_streams()
        serving(lambda: _dial(path), reconnect=True).serve()
    if arguments == ["--stdio"]:
        stream = Stream(_move(0), _move(1))
        _occupy_standard_streams()
        serving(lambda: stream, reconnect=False).serve()
    raise SystemExit("usage: [--users=UID:GID] --socket PATH | --stdio")


def _dial(path: str) -> Stream | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(path)
    except OSError:
        connection.close()  # nobody listens: the host's process is gone, or not there yet
        return None
    descriptor = connection.detach()
    return Stream(descriptor, descriptor)


def _move(descriptor: int) -> int:
    """The same file under a number that no child inherits."""
    return os.dup(descriptor)


def _occupy_standard_streams() -> None:
    """Put /dev/null on 0 and 1, so that nothing written by mistake reaches the stream."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0, inheritable=False)
    os.dup2(null, 1, inheritable=False)
    os.close(null)


if __name__ == "__main__":
    main(sys.argv[1:])
