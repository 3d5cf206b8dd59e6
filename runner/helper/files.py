"""Reading, writing and editing single files inside the container.

Owns what happens to bytes on disk: only regular files, every read bounded, the old content
kept whenever the new one can't be stored whole. It knows no text encoding, no tool and no
policy, and it does not decide which paths are fit to touch: whoever asks has the rights of
this process, no more.

Paths are UTF-8 and go to the kernel byte for byte: no expansion, no normalisation. Links are
followed, as the kernel follows them.
"""

import errno
import os
import stat
import threading

NEW_FILE_MODE = 0o644
NEW_DIRECTORY_MODE = 0o755
NAME_LIMIT_BYTES = 255
"""The longest name of a file on the file systems that Linux keeps files on."""

_OPEN = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""A FIFO that took a file's place must not block us, nor a terminal become ours."""
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
        number = error.errno or 0
        return cls(_CODES.get(number, "io"), os.strerror(number).lower())


def read(path: str, limit_bytes: int) -> bytes:
    """The whole content of a regular file.

    Raises:
        Failure: It can't be opened or read; it is no regular file (which is then not opened
            at all); or it is larger than `limit_bytes`, which is found out before reading.
    """
    try:
        return _read(encode(path), limit_bytes)
    except OSError as error:
        raise Failure.of(error) from error


def write(path: str, content: bytes) -> int:
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

    Raises:
        Failure: It can't be written, or is no regular file. Directories that were made on
            the way stay.
    """
    name = encode(path)
    try:
        if name.endswith(b"/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if any(len(part) > NAME_LIMIT_BYTES for part in name.split(b"/")):
            # Said before its parents are made, not after.
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        with _changing:
            try:
                require_regular(os.stat(name))
            except FileNotFoundError:
                _make_directories(os.path.normpath(os.path.dirname(name)))
            _store(_resolve(name), content)
    except OSError as error:
        raise Failure.of(error) from error
    return len(content)


def replace(path: str, old: bytes, new: bytes, limit_bytes: int) -> int:
    """Replace `old` by `new` if it occurs exactly once; how often it occurs.

    Occurrences are counted from the start, without overlap. All other bytes, and the mode,
    stay as they are. The file is stored as `write` does it.

    Args:
        old: Not empty.
        limit_bytes: The largest file to edit.

    Raises:
        Failure: The file can't be read or written, is no regular file, or is too large.
    """
    name = encode(path)
    try:
        with _changing:
            content = _read(name, limit_bytes)
            count = content.count(old)
            if count == 1:
                _store(_resolve(name), content.replace(old, new, 1))
    except OSError as error:
        raise Failure.of(error) from error
    return count


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


def open_regular(name: bytes, flags: int) -> tuple[int, os.stat_result]:
    """Open an existing regular file; its descriptor, and its status once it was open.

    Raises:
        OSError: It can't be opened.
        Failure: It is no regular file.
    """
    require_regular(os.stat(name))  # opening a device may already do something
    descriptor = os.open(name, flags | _OPEN)
    try:
        status = os.fstat(descriptor)
        require_regular(status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


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


def _read(name: bytes, limit_bytes: int) -> bytes:
    descriptor, status = open_regular(name, os.O_RDONLY)
    try:
        content = read_bounded(descriptor, status.st_size, limit_bytes)
    finally:
        os.close(descriptor)
    if content is None:
        size = max(status.st_size, limit_bytes + 1)
        raise Failure("file_too_large", f"file too large: {size} bytes, the limit is {limit_bytes}")
    return content


def _make_directories(path: bytes) -> None:
    missing = []
    while True:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            missing.append(path)
            path = os.path.dirname(path)
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        break
    for directory in reversed(missing):
        try:
            os.mkdir(directory, NEW_DIRECTORY_MODE)
        except FileExistsError:
            if os.path.isdir(directory):
                continue  # somebody was faster
            raise
        mode = stat.S_IMODE(os.stat(directory).st_mode)
        if mode & 0o777 != NEW_DIRECTORY_MODE:  # the umask took some; set-group-ID stays
            os.chmod(directory, mode & ~0o777 | NEW_DIRECTORY_MODE)


def _resolve(name: bytes) -> bytes:
    """Where opening `name` to create it would end up: a path without links."""
    for _ in range(_LINK_LIMIT):
        parent, base = os.path.split(name)
        parent = os.path.realpath(parent, strict=True)
        name = os.path.join(parent, base)
        try:
            link = os.readlink(name)
        except FileNotFoundError:
            return name
        except OSError as error:
            if error.errno == errno.EINVAL:  # no link
                return name
            raise
        name = os.path.join(parent, link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _store(target: bytes, content: bytes) -> None:
    if target.startswith(b"/proc/"):
        # Those of this process are open to it: how the kernel treats the helper itself.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    try:
        descriptor, status = open_regular(target, os.O_WRONLY)  # may it be written at all?
    except FileNotFoundError:
        _swap(target, content, None)
        return
    try:
        if not _swapped(target, content, status):
            _overwrite(descriptor, content, status.st_size)
    finally:
        os.close(descriptor)


def _swapped(target: bytes, content: bytes, old: os.stat_result) -> bool:
    """Whether a new file could take the place of an old one without anybody being the poorer."""
    if old.st_nlink != 1:
        return False
    try:
        return _swap(target, content, old)
    except OSError:
        return False  # whatever it was, the second way meets it again if it matters


def _swap(target: bytes, content: bytes, old: os.stat_result | None) -> bool:
    """Put a new file in the place of `target`; False where it would have another owner."""
    temporary = os.path.join(os.path.dirname(target), b".runner-" + os.urandom(8).hex().encode())
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        try:
            new = os.fstat(descriptor)
            if old is not None and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                os.unlink(temporary)
                return False
            _write_all(descriptor, content)
            # As after any write, a set-user-ID bit is gone.
            os.fchmod(descriptor, NEW_FILE_MODE if old is None else old.st_mode & 0o777)
        finally:
            os.close(descriptor)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
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
