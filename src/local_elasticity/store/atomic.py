"""Files and folders that appear complete or not at all, even when a process is killed or the disk is full.

Content is written beside its place under another name and then renamed. Every file of ours is written here.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from local_elasticity.engine.guard import raise_of_handler

LONGEST_NAME = 40
"""Characters of a file's name that its unfinished copy repeats, so that the copy's name is never too long."""

TRIES, SECONDS_BETWEEN = 40, 0.05
"""How often, and after which pauses, an unfinished folder is removed."""

SECONDS_UNTIL_ABANDONED = 60
"""The age from which on an unfinished folder without a lock was left by a process that is gone. A new one may be about
to be locked."""

ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space and run it again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a folder that you may write to"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a part of that path is a file and not a folder"),
}
"""What to do about a write that failed, by its error number."""


def check_name(path: Path, argument: str = "path") -> None:
    """Raise a ValueError if nothing can have this path: it is too long, or holds a NUL character."""
    try:
        path.lstat()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            return
        reason = error.strerror if isinstance(error, OSError) else error
        shown = str(path)[:LONGEST_NAME].replace("\0", "\\0")
        raise ValueError(f"{argument}: {shown}… is no possible path ({reason}); choose another") from error


def check_file(path: Path, argument: str = "path") -> None:
    """Raise a FileExistsError if `path` exists and is not a regular file; call it before a long computation.

    A symlink counts as what it points to. A folder, a device, a FIFO or a socket is refused and left as it is.
    """
    check_name(path, argument)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise not_written(path, argument, error) from error
    if stat.S_ISDIR(mode):
        raise FileExistsError(f"{argument}: {path} is a folder; name a file in it, such as {path / 'name'}")
    if not stat.S_ISREG(mode):
        raise FileExistsError(f"{argument}: {path} is a device, FIFO or socket; name a regular file or a new one")


def write_whole(path: Path, content: bytes, argument: str = "path") -> None:
    """Write a file, and the folders above it. A file that exists is replaced and keeps its permissions.

    The target of a symlink is written, and the link stays. Where writing fails, the earlier file stays as it was.

    Args:
        path: where to write; a folder, device or FIFO is refused (`check_file`).
        content: all bytes of the file.
        argument: what the caller calls the path, for error messages.

    Raises:
        OSError: nothing was written; the message names the argument, the path and the reason.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a", "b.txt"), b"all of it")
    ...     Path(folder, "a", "b.txt").read_text()
    'all of it'
    """
    check_file(path, argument)
    target = _target(path)
    unfinished = _beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        if target.exists():
            unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
        unfinished.replace(target)
    except OSError as error:
        raise not_written(path, argument, error) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


@contextmanager
def whole_folder(path: Path, argument: str = "path") -> Iterator[Path]:
    """A folder to fill: it is renamed to `path`, which must not exist, when the context ends, and removed on an error.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with whole_folder(Path(place, "made")) as unfinished:
    ...         _ = (unfinished / "a.txt").write_text("all of it")
    ...     Path(place, "made", "a.txt").read_text()
    'all of it'
    """
    target = _target(path)
    unfinished = _beside(target)
    _remove_abandoned(target)
    try:
        unfinished.mkdir(parents=True)
        with alone(unfinished):
            yield unfinished
            unfinished.rename(target)
    except OSError as error:
        raise not_written(path, argument, error) from error
    finally:
        _remove(unfinished)


def not_written(path: Path, argument: str, error: OSError) -> OSError:
    """An error of the same type that says in one sentence what was not written, why, and what to do."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = ADVICE.get(error.errno or 0, "choose another path")
    return plainly(error, f"{argument}: {path} could not be written ({reason}); {advice}")


def plainly(error: OSError, sentence: str) -> OSError:
    """An error of the same kind and number whose text is the sentence alone. What a signal handler raised is raised."""
    raise_of_handler(error)
    made = type(error)(sentence)
    made.errno = error.errno
    return made


def _target(path: Path) -> Path:
    """The target of a path after following links, whether or not it exists."""
    return Path(os.path.realpath(path))


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:LONGEST_NAME]}.{uuid.uuid4().hex[:8]}.partial")


def _remove(folder: Path) -> None:
    """Remove a folder, repeatedly if needed: after an error, zarr's threads may still write files into it."""
    for _ in range(TRIES):
        if not folder.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(SECONDS_BETWEEN)


def _remove_abandoned(target: Path) -> None:
    """Remove unfinished folders of `target` whose process was killed: they are old, and nobody holds their lock."""
    if os.name == "nt":  # there are no such locks
        return
    for folder in target.parent.glob(f".{glob.escape(target.name[:LONGEST_NAME])}.*.partial"):
        with suppress(OSError, RuntimeError):
            if folder.is_dir() and time.time() - folder.stat().st_mtime > SECONDS_UNTIL_ABANDONED:
                with alone(folder):
                    shutil.rmtree(folder)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """The only writer of a folder, for as long as the context lasts; the lock goes when its process does."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        _lock(fcntl, folder, path)
        yield
    finally:
        os.close(folder)


class InUseError(OSError, RuntimeError):
    """Another process is writing to a store."""


def _lock(fcntl: Any, folder: int, path: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InUseError(f"store: another process is writing to {path}; wait for it, or choose another path") from error
