"""Directories of the host that sessions work in: which may be mounted, making, removing.

Nothing here opens a file below a workspace: once a session has run in it, every name in it is
hostile.
"""

import asyncio
import os
from pathlib import Path

from runner.errors import WorkspaceError

MANAGED_UID = 65532
"""Owner of managed workspaces where the runner is root: nobody's, and no one's on the host."""
REFUSED = frozenset(
    [
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/lib64",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/sys",
        "/tmp",  # noqa: S108
        "/usr",
        "/var",
    ]
)
"""Directories that hold a system, or everybody's files; never what was meant."""


def check_workspace(path: Path) -> Path:
    """The directory that is meant, links resolved.

    Raises:
        WorkspaceError: It does not exist, is no directory, or holds a whole system.
    """
    try:
        resolved = path.expanduser().resolve(strict=True)
    except FileNotFoundError as error:
        raise WorkspaceError(f"workspace {str(path)!r}: there is no such directory") from error
    except (OSError, RuntimeError) as error:
        raise WorkspaceError(f"workspace {str(path)!r}: {error}") from error
    if not str(resolved).isprintable():
        raise WorkspaceError(
            f"workspace {str(resolved)!r} has a name that can't be shown: rename it, or bind-mount"
            " it under another"
        )
    if not resolved.is_dir():
        raise WorkspaceError(f"workspace {str(path)!r} is not a directory")
    if str(resolved) in REFUSED:
        raise WorkspaceError(
            f"workspace {str(resolved)!r} holds more than a project: name a directory below it"
        )
    return resolved


def make_workspace(path: Path) -> None:
    """Make an empty directory for a session, owned by somebody without rights."""
    path.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(path, MANAGED_UID, MANAGED_UID)


async def remove_tree(path: Path) -> None:
    """Remove a directory that a session has written to.

    By `rm`, which walks by descriptors: it follows no link that is swapped in, and copes with
    trees deeper than a path can be long.

    Raises:
        WorkspaceError: Something could not be removed.
    """
    if not os.path.lexists(path):
        return
    for command in (["chmod", "-R", "u+rwX", "--"], ["rm", "-rf", "--one-file-system", "--"]):
        process = await asyncio.create_subprocess_exec(
            *command,
            str(path),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
    if os.path.lexists(path):
        raise WorkspaceError(
            f"can't remove {path}: {errors.decode(errors='replace').strip()[:500]}"
        )
