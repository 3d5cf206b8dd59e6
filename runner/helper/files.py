"""Reading, writing and editing single files inside the container.

Owns what happens to bytes on disk: only regular files, every read bounded, the old content
kept whenever the new one can't be stored whole. It knows no text encoding, no tool and no
policy, and it does not decide which paths are fit to touch: whoever asks has the rights of
this process, no more.

Paths are UTF-8 and go to the kernel byte for byte: no expansion, no normalisation. Links are
followed, as the kernel follows them, except where a path was *judged*: somebody looked at what
`resolve` made of it and said yes to that. Then exactly there is acted, directory by directory
and without following anything, so that a link which comes later leads nobody elsewhere.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from runner.helper import wire

T = TypeVar("T")

NEW_FILE_MODE = 0o644
NEW_DIRECTORY_MODE = 0o755
MOVED = "a link took the place of a file or directory of this path while it was judged"
NAME_LIMIT_BYTES = 255
"""The longest name of a file on the file systems that Linux keeps files on."""

_OPEN = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""A FIFO that took a file's place must not block us, nor a terminal become ours."""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""Enough to go on from it, and no more rights than going through it takes."""
_MARGIN_BYTES = 4096
"""Read beyond the size that was seen: files of /proc say that they have none."""
_LINK_LIMIT = 40
"""As many links in one path as Linux follows."""

_CODES = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "exists",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_directory",
    errno.ENXIO: "not_regular",
    errno.ENODEV: "not_regular",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "read_only",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "file_too_large",
    errno.ENAMETOOLONG: "name_too_long",
    errno.ELOOP: "link_loop",
    errno.ENOMEM: "out_of_memory",
    errno.EBUSY: "busy",
}

_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EBADF)
"""What `posix_fallocate` says on file systems that can't. EBADF comes from the C library,
which would then read and write a byte of every block, but may not read here."""

_changing = threading.Lock()
"""Held while a file changes. Calls of one session run at once: of two edits of one file,
the second must see what the first one wrote."""


class Failure(Exception):
    """A request about files that could not be carried out.

    Attributes:
        code: One of `wire.FAILURES`.
        detail: The reason in the operating system's words, such as `no such file or directory`.
    """

    def __init__(self, code: str, detail: str):
        self.code = code
        self.detail = detail
        super().__init__(f"{code}: {detail}")

    @classmethod
    def of(cls, error: OSError) -> "Failure":
        """The failure that an error of the operating system stands for."""
        if isinstance(error, Moved):
            return cls("moved", MOVED)
        number = error.errno or 0
        return cls(_CODES.get(number, "io"), os.strerror(number).lower())


class Moved(OSError):
    """A link stands in a path that had none when it was resolved."""

    def __init__(self) -> None:
        super().__init__(errno.ELOOP, MOVED)


def resolve(path: str) -> str:
    """Where a path leads: absolute, and without any link, `.`, `..` or empty name.

    What is there is found as the kernel finds it. What is missing at the end is kept as it
    is written, since it may be made. The answer is true for a moment only: act on it by
    handing it to the functions here as `judged`. For a link of /proc it is what `readlink`
    says, even where that names nothing.

    Raises:
        Failure: The kernel would not get there: links in a circle, a file for a directory,
            a name that is too long, `..` behind something that is missing, a link to a
            place where nothing could be made. `io` where a link leads to a name that is not
            UTF-8, which nobody could judge.
    """
    try:
        return _resolve(encode(path)).decode()
    except UnicodeDecodeError as error:
        raise Failure("io", "a link leads to a name that is not UTF-8") from error
    except OSError as error:
        raise Failure.of(error) from error


def read(path: str, limit_bytes: int, *, judged: str | None = None) -> bytes:
    """The whole content of a regular file.

    Args:
        judged: Read this path instead, and follow no link; as `resolve` returned it.

    Raises:
        Failure: It can't be opened or read; it is no regular file (which is then not opened
            at all); or it is larger than `limit_bytes`, which is found out before reading.
            `moved`: a link stands in the path that was judged.
    """
    try:
        descriptor, status = open_to_read(path, judged)
        try:
            return _all(descriptor, status, limit_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Failure.of(error) from error


def write(path: str, content: bytes, *, judged: str | None = None) -> int:
    """Make `content` the whole content of a file; the number of bytes written.

    Missing directories are made with mode 0o755, a new file gets 0o644, whatever the umask;
    a file that exists keeps its mode. Writing to a link writes to what it points at, and
    creates that where it is missing.

    The content first goes into a temporary file beside the target, which then takes its
    place, so that nobody sees half of it and a full disk costs nothing. Where a new file
    would not do, the old one is overwritten in place, after room for the content has been
    reserved: when it has other names (hard links) or another owner, when the directory may
    not be written, when it is a mount point of its own, or when there is no room for old
    and new at once. Only on a file system that can't reserve room (NFS 3) is that second
    way without the promise that the old content survives a full disk. Nothing is synced:
    the promise is about failures and ends of processes, not about power cuts.

    Whatever happens meanwhile, it is the file that the path led to: its directory is held
    open, and reached without following a link.

    Args:
        judged: Write this path instead of what `path` leads to; as `resolve` returned it.

    Raises:
        Failure: It can't be written, or is no regular file. Directories that were made on
            the way stay. `moved`: a link came into the path since it was resolved.
    """
    _change(path, judged, lambda directory, name: _store(directory, name, content), make=True)
    return len(content)


def replace(
    path: str, old: bytes, new: bytes, limit_bytes: int, *, judged: str | None = None
) -> int:
    """Replace `old` by `new` if it occurs exactly once; how often it occurs.

    Occurrences are counted from the start, without overlap. All other bytes, and the mode,
    stay as they are. The file is stored as `write` does it.

    Args:
        old: Not empty.
        limit_bytes: The largest file to edit.
        judged: Edit this path instead of what `path` leads to; as `resolve` returned it.

    Raises:
        Failure: The file can't be read or written, is no regular file, or is too large.
            `moved`: a link came into the path since it was resolved.
    """

    def change(directory: int, name: bytes) -> int:
        content = _read(name, limit_bytes, directory)
        count = content.count(old)
        if count == 1:
            _store(directory, name, content.replace(old, new, 1))
        return count

    return _change(path, judged, change)


def edit(
    path: str,
    edits: Iterable[tuple[bytes, bytes, bool]],
    limit_bytes: int,
    cancelled: Callable[[], bool],
    *,
    judged: str | None = None,
) -> tuple[list[int], bool]:
    """Make several replacements in one file, one after the other; all of them or none.

    Each is made in what those before it left. It must find its old text exactly once; one that
    replaces all must find it at least once. Occurrences are counted as `replace` does, and the
    file is stored as `write` does it.

    Args:
        edits: The old text, the new one, and whether to replace all.
        limit_bytes: The largest file to edit, and the largest that it may become.
        cancelled: Asked between replacements.
        judged: As for `replace`.

    Returns:
        How often each old text occurred, up to the first that did so as it must not; and
        whether the file was written, which is whether there was none.

    Raises:
        Failure: As for `replace`. `file_too_large` also for what the file would become.
    """

    def change(directory: int, name: bytes) -> tuple[list[int], bool]:
        counts = []
        content = _read(name, limit_bytes, directory)
        for old, new, every in edits:
            if cancelled():
                raise Failure("cancelled", "cancelled")
            if not old:
                raise Failure("io", "invalid argument: the text to replace is empty")
            count = content.count(old)
            counts.append(count)
            if not count or (count > 1 and not every):
                return counts, False
            size = len(content) + count * (len(new) - len(old))
            if size > limit_bytes:
                raise _too_large(size, limit_bytes)
            content = content.replace(old, new)
        _store(directory, name, content)
        return counts, True

    return _change(path, judged, change)


def append(path: str, content: bytes, *, judged: str | None = None) -> int:
    """Write behind what is in a file; the number of bytes written.

    What is missing is made, as `write` does. Where there is no room for all of it, the file is
    as it was before, and one that was made is gone again. Somebody who reads meanwhile may see
    a part of it.

    Args:
        judged: As for `write`.

    Raises:
        Failure: It can't be written, or is no regular file.
    """
    _change(path, judged, lambda directory, name: _extend(directory, name, content), make=True)
    return len(content)


def encode(path: str) -> bytes:
    """A path as the kernel takes it.

    Raises:
        Failure: It holds a NUL, which would end it early.
    """
    if "\0" in path:
        raise Failure("io", "invalid argument: the path contains a NUL byte")
    return path.encode()


def require_regular(status: os.stat_result) -> None:
    """Raise the failure that fits where something is no regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise Failure("is_directory", "is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise Failure("not_regular", "not a regular file")


def open_regular(
    name: bytes, flags: int, directory: int | None = None
) -> tuple[int, os.stat_result]:
    """Open an existing regular file; its descriptor, and its status once it was open.

    Args:
        directory: Where `name` stands, which then is followed nowhere. None: `name` is a path,
            to be followed as usual.

    Raises:
        OSError: It can't be opened.
        Failure: It is no regular file.
    """
    follows = directory is None
    seen = os.stat(name, dir_fd=directory, follow_symlinks=follows)
    if stat.S_ISLNK(seen.st_mode):
        raise Moved
    require_regular(seen)  # opening a device may already do something
    if directory is None:
        descriptor = os.open(name, flags | _OPEN)
    else:
        descriptor = open_here(directory, name, flags | _OPEN)
    try:
        status = os.fstat(descriptor)
        require_regular(status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def open_to_read(path: str, judged: str | None) -> tuple[int, os.stat_result]:
    """Open a regular file: the one that was judged, or else what the path leads to.

    Raises:
        OSError: It can't be opened.
        Failure: It is no regular file.
    """
    if judged is None:
        return open_regular(encode(path), os.O_RDONLY)
    directory, name = open_parent(encode(judged))
    try:
        return open_regular(name, os.O_RDONLY, directory)
    finally:
        os.close(directory)


def open_directory(path: bytes, *, make: bool = False) -> int:
    """Hold a directory, to go on from it; no link is followed on the way.

    Args:
        path: As `resolve` returns it.
        make: Make it, and what it stands in, with mode 0o755 where it is missing.

    Raises:
        Moved: A link stands in the path.
        OSError: It can't be reached, or made.
    """
    descriptor = os.open(b"/", _DIRECTORY)
    for name in filter(None, path.split(b"/")):
        try:
            below = _enter(descriptor, name, make)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def open_here(directory: int, name: bytes, flags: int = _DIRECTORY) -> int:
    """Open what stands under a name in a directory; as a directory itself, without flags.

    Raises:
        Moved: It is a link.
        OSError: It can't be opened.
    """
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        # The kernel's words for a link: a circle, or what is no directory. It may be one again.
        if error.errno == errno.ELOOP:
            raise Moved from error
        if error.errno == errno.ENOTDIR:
            now = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if stat.S_ISLNK(now) or stat.S_ISDIR(now):
                raise Moved from error
        raise


def read_bounded(descriptor: int, size: int, limit_bytes: int) -> bytes | None:
    """All that an open file holds, or None when that is more than `limit_bytes`.

    Args:
        size: How large it is said to be; it may be wrong.
    """
    if size > limit_bytes:
        return None
    content = os.read(descriptor, size + _MARGIN_BYTES)
    if len(content) == size > 0:
        return content  # for a regular file, fewer bytes than asked for mean its end
    pieces = [content]
    total = len(content)
    while content and total <= limit_bytes:
        content = os.read(descriptor, 256 * 1024)
        pieces.append(content)
        total += len(content)
    return b"".join(pieces) if total <= limit_bytes else None


def _read(name: bytes, limit_bytes: int, directory: int) -> bytes:
    descriptor, status = open_regular(name, os.O_RDONLY, directory)
    try:
        return _all(descriptor, status, limit_bytes)
    finally:
        os.close(descriptor)


def _all(descriptor: int, status: os.stat_result, limit_bytes: int) -> bytes:
    content = read_bounded(descriptor, status.st_size, limit_bytes)
    if content is None:
        raise _too_large(max(status.st_size, limit_bytes + 1), limit_bytes)
    return content


def _too_large(size: int, limit_bytes: int) -> Failure:
    return Failure("file_too_large", f"file too large: {size} bytes, the limit is {limit_bytes}")


def _resolve(name: bytes) -> bytes:
    """Where `name` leads, or where it would be made."""
    if not name.startswith(b"/"):
        name = os.path.join(os.getcwdb(), name)
    if len(name) > wire.MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    place = b""  # the root: places end without a slash
    todo = name.split(b"/")[::-1]  # the next name is the last
    written = len(todo)  # so many are the caller's own; those above them come from links
    links = 0
    while todo:
        part = todo.pop()
        linked = len(todo) >= written
        written = min(written, len(todo))
        if part in (b"", b"."):
            if not todo:  # elsewhere the next name finds out whether this is a directory
                os.lstat(place + b"/.")
            continue
        if part == b"..":
            os.lstat(place + b"/..")
            place = place.rpartition(b"/")[0]
            continue
        here = place + b"/" + part
        try:
            mode = os.lstat(here).st_mode
        except FileNotFoundError:
            if linked and todo:
                raise  # nothing would be made on a link's behalf but the last name
            place = _with_missing(place, [part, *reversed(todo)])
            break
        if stat.S_ISLNK(mode):
            links += 1
            if links > _LINK_LIMIT:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(here)
            if target.startswith(b"/"):
                place = b""
            todo += target.split(b"/")[::-1]
            continue
        place = here
    if len(place) > wire.MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return place or b"/"


def _with_missing(place: bytes, names: list[bytes]) -> bytes:
    """A place and names below it, of which the first is missing."""
    if b".." in names or names[-1] == b".":
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if any(len(name) > NAME_LIMIT_BYTES for name in names):
        # Said before its parents are made, not after.
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return b"/".join([place, *(name for name in names if name not in (b"", b"."))])


def place(path: str, judged: str | None) -> bytes:
    """Where to act: what was judged, or else where the path leads now.

    Raises:
        Failure: As for `encode`.
        OSError: As for `resolve`.
    """
    return _resolve(encode(path)) if judged is None else encode(judged)


def _change(
    path: str, judged: str | None, change: Callable[[int, bytes], T], *, make: bool = False
) -> T:
    """Have a file changed, one at a time; what `change` returns.

    Args:
        change: Gets the file's directory, held open, and its name in there.
        make: It may be a new file, in new directories.

    Raises:
        Failure: It can't be changed, or not by this process.
    """
    try:
        if make and path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with _changing:
            directory, name = open_parent(_place_to_change(path, judged), make=make)
            try:
                return change(directory, name)
            finally:
                os.close(directory)
    except OSError as error:
        raise Failure.of(error) from error


def _place_to_change(path: str, judged: str | None) -> bytes:
    """The place of a file that is to change."""
    found = place(path, judged)
    if found.startswith(b"/proc/"):
        # Those of this process are open to it: how the kernel treats the helper itself.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return found


def open_parent(place: bytes, *, make: bool = False) -> tuple[int, bytes]:
    """The directory of a place, held open, and the name in there; see `open_directory`."""
    parent, _, name = place.rpartition(b"/")
    return open_directory(parent, make=make), name or b"."


def _enter(directory: int, name: bytes, make: bool) -> int:
    try:
        return open_here(directory, name)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, NEW_DIRECTORY_MODE, dir_fd=directory)
    except FileExistsError:
        return open_here(directory, name)  # somebody was faster
    made = open_here(directory, name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(made).st_mode)
        if mode & 0o777 != NEW_DIRECTORY_MODE:  # the umask took some; set-group-ID stays
            os.fchmod(made, mode & ~0o777 | NEW_DIRECTORY_MODE)
    except BaseException:
        os.close(made)
        raise
    return made


def _store(directory: int, name: bytes, content: bytes) -> None:
    try:  # may it be written at all?
        descriptor, status = open_regular(name, os.O_WRONLY, directory)
    except FileNotFoundError:
        _swap(directory, name, content, None)
        return
    try:
        if not _swapped(directory, name, content, status):
            _overwrite(descriptor, content, status.st_size)
    finally:
        os.close(descriptor)


def _extend(directory: int, name: bytes, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND
    try:
        descriptor, status = open_regular(name, flags, directory)
        old_size: int | None = status.st_size
    except FileNotFoundError:
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, NEW_FILE_MODE, dir_fd=directory)
        old_size = None
    try:
        if old_size is None:
            os.fchmod(descriptor, NEW_FILE_MODE)  # the umask took some
        _write_all(descriptor, content)
    except BaseException:
        if old_size is None:
            os.unlink(name, dir_fd=directory)
        else:
            os.ftruncate(descriptor, old_size)
        raise
    finally:
        os.close(descriptor)


def _swapped(directory: int, name: bytes, content: bytes, old: os.stat_result) -> bool:
    """Whether a new file could take the place of an old one without anybody being the poorer."""
    if old.st_nlink != 1:
        return False
    try:
        return _swap(directory, name, content, old)
    except OSError:
        return False  # whatever it was, the second way meets it again if it matters


def _swap(directory: int, name: bytes, content: bytes, old: os.stat_result | None) -> bool:
    """Put a new file in the place of an old one; False where it would have another owner."""
    temporary = b".runner-" + os.urandom(8).hex().encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        try:
            new = os.fstat(descriptor)
            if old is not None and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                os.unlink(temporary, dir_fd=directory)
                return False
            _write_all(descriptor, content)
            # As after any write, a set-user-ID bit is gone.
            os.fchmod(descriptor, NEW_FILE_MODE if old is None else old.st_mode & 0o777)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    return True


def _overwrite(descriptor: int, content: bytes, old_size: int) -> None:
    """Store into an existing file, which changes only once there is room for all of it."""
    if content:
        try:
            os.posix_fallocate(descriptor, 0, len(content))
        except OSError as error:
            os.ftruncate(descriptor, old_size)
            if error.errno not in _CANNOT_RESERVE:
                raise
    _write_all(descriptor, content)
    os.ftruncate(descriptor, len(content))


def _write_all(descriptor: int, content: bytes) -> None:
    with memoryview(content) as rest:
        written = 0
        while written < len(content):
            written += os.write(descriptor, rest[written:])
