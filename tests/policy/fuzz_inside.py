"""Runs scripts under real shells, and tells what they did. It runs inside a session's container.

    python3 fuzz_inside.py BATCH RESULTS

`BATCH` is a JSON list of `[script, shell]`. `RESULTS` becomes a list with an object for each:
the programs that it started, in order, each a list of its words; the files that it left created,
changed or removed; and whether it had to be ended.

All programs on the search path are stand-ins. Each writes down its words; most do nothing more.
Those which run other programs, or write a file for some of their flags, then become the real
one, so that what they would do happens. The standard library only.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import Any

HOME = Path("/tmp/fuzz")
BIN = HOME / "bin"
LOG = HOME / "log"
WORKSPACE = Path("/workspace")
OUTSIDE = Path("/tmp/outside")
LIMIT_S = 1.0
SHELLS = {
    "sh": ["/bin/sh", "-c"],
    "bash": ["/usr/bin/bash", "--posix", "-c"],
    "busybox": ["/tmp/fuzz-busybox", "sh", "-c"],
}

REAL = """
env nice nohup timeout stdbuf setsid ionice xargs find sort uniq sed awk tee dd tar sh bash dash
"""
"""Stand-ins that become the real program."""
PASS_ON = "sudo doas time busybox command"
"""Stand-ins for what the image does not have: they start the program among their words."""
IDLE = """
ls rg grep git wc rm rmdir mv cp ln touch mkdir chmod chown curl wget ssh nc python3 python perl
node make npm npx docker kubectl systemctl tail cut tr diff stat file du df jq basename sleep date
mkfs shutdown kill pkill gcc cargo go pip vim man less id whoami uname hostname printenv seq cmp
comm tree realpath readlink md5sum sha256sum xxd od nl rev tac true false echo printf pwd test [
eval exec cat head
"""
"""Stand-ins that do nothing."""

STAND_IN = f"""#!/bin/dash
printf '%s\\0' "$#" "$0" "$@" >>{LOG}
name=${{0##*/}}
case " {" ".join(REAL.split())} " in
*" $name "*) exec /usr/bin/"$name" "$@" ;;
esac
case " {PASS_ON} " in
*" $name "*)
    while :; do
        case $1 in
        -u) shift 2 ;;
        -* | *=*) shift ;;
        *) break ;;
        esac
    done
    [ $# -eq 0 ] || exec "$@"
    ;;
esac
exit 0
"""

_FILES = {
    "a.txt": "one\ntwo\n",
    "b.txt": "three\n",
    "two words.txt": "four\n",
    "docs/readme.md": "# five\n",
    "src/main.py": "print(6)\n",
    "src/util.py": "seven = 7\n",
    "build/old": "eight\n",
    "build/list": "nine\n",
    ".envrc": "ten\n",
    ".git/config": "",
    # Names that become flags where a glob finds them.
    "-rf": "",
    "-o": "",
    "--pre=x": "",
    "-exec": "",
    "src/-o": "",
}.items()
FILES = {WORKSPACE / name: content for name, content in _FILES} | {OUTSIDE / "there": "eleven\n"}
_PROGRAMS = ("evil/ls", "evil/git", "evil/cat", "run.sh", "src/ls")
LINKS = {WORKSPACE / name: HOME / "stand-in" for name in _PROGRAMS} | {WORKSPACE / "link": OUTSIDE}


class Ended(Exception):
    """A script took too long."""


def main() -> None:
    """Run a batch."""
    batch = json.loads(Path(sys.argv[1]).read_text())
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)  # orphans of a script become children of this process
    signal.signal(signal.SIGALRM, _end)
    make_stand_ins()
    make_files()
    results = []
    expected = state()
    for script, shell in batch:
        ended = run(script, shell)
        found = state()
        changed = sorted(set(expected.items()) ^ set(found.items()))
        paths = sorted({path for path, _ in changed})
        results.append({"ran": logged(), "changed": paths, "ended": ended})
        if changed:
            restore(paths)
            expected = state()
    Path(sys.argv[2]).write_text(json.dumps(results))


def _end(*_: Any) -> None:
    raise Ended


def make_stand_ins() -> None:
    """Fill the only directory of the search path."""
    shutil.rmtree(HOME, ignore_errors=True)
    BIN.mkdir(parents=True)
    one = HOME / "stand-in"
    one.write_text(STAND_IN)
    one.chmod(0o755)
    for name in f"{REAL} {PASS_ON} {IDLE}".split():
        (BIN / name).symlink_to(one)


def make_files() -> None:
    """Make the workspace what each script finds."""
    for root in (WORKSPACE, OUTSIDE):
        root.mkdir(exist_ok=True)
        for path in root.iterdir():
            remove(path)
    for path, content in FILES.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    for path, target in LINKS.items():
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)
    for path in Path("/tmp").iterdir():
        if path not in (HOME, OUTSIDE) and not path.name.startswith("fuzz"):
            remove(path)


def remove(path: Path) -> None:
    """Whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def restore(paths: list[str]) -> None:
    """Make these what they were."""
    if all(Path(path) in FILES and Path(path).is_file() for path in paths):
        for path in paths:
            Path(path).write_text(FILES[Path(path)])
    elif not any(Path(path) in FILES or Path(path) in LINKS for path in paths) and all(
        Path(path).is_file() for path in paths
    ):
        for path in paths:
            Path(path).unlink()
    else:
        make_files()


def state() -> dict[str, tuple[Any, ...]]:
    """Every file that a script may write to, with what shows that it was."""
    found: dict[str, tuple[Any, ...]] = {}
    waiting = [str(WORKSPACE), "/tmp"]
    while waiting:
        directory = waiting.pop()
        for entry in os.scandir(directory):
            if entry.path == str(HOME) or entry.name.startswith("fuzz"):
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                # Its own time would say once more what is said of the files in it.
                found[entry.path] = (status.st_mode,)
                waiting.append(entry.path)
            else:
                found[entry.path] = (
                    *(status.st_mode, status.st_size, status.st_mtime_ns),
                    *(status.st_ino, status.st_ctime_ns),
                )
    return found


def run(script: str, shell: str) -> bool:
    """Run one, wait for everything that it started, and say whether it had to be ended."""
    LOG.write_bytes(b"")
    words = [*SHELLS[shell], script]
    try:
        pid = os.posix_spawn(
            words[0],
            [os.fsencode(word) for word in words],
            {"PATH": str(BIN), "HOME": "/tmp/home", "LANG": "C.UTF-8", "PWD": str(WORKSPACE)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
            ],
            setsid=True,
        )
    except (ValueError, OSError):  # a NUL, or more than the kernel takes: no shell can run it
        return False
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        _wait_for_all()
    except Ended:
        _kill(pid)
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def _wait_for_all() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill(pid: int) -> None:
    """End a script's session, and then whatever left it."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        for child in _children():
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.append(int(name))
    return found


def logged() -> list[list[str]]:
    """What the stand-ins wrote down."""
    fields = os.fsdecode(LOG.read_bytes()).split("\0")[:-1]
    found = []
    at = 0
    while at < len(fields):
        if not fields[at].isdigit():
            raise SystemExit(f"the log is broken: {fields[at : at + 5]}")
        end = at + 2 + int(fields[at])
        found.append(fields[at + 1 : end])
        at = end
    return found


if __name__ == "__main__":
    main()
