"""Open only regular files, with a limit of their size: a path may lead to a pipe or a device.

with open_regular(path, at_most=1 << 20) as file: ...
os.write(open_to_append(path), b"a line")
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path | str, *, at_most: int | None = None) -> BinaryIO:
    """Open a file to read, without waiting for the other end of a pipe.

    Raises OSError, also if it is no regular file or has more than `at_most` bytes.
    """
    return os.fdopen(_open(path, os.O_RDONLY, at_most), "rb")


def open_to_append(path: Path) -> int:
    """Return the descriptor of a file, which is created if it does not exist.

    Raises OSError, also for a link, a pipe or a device.
    """
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def _open(path: Path | str, flags: int, at_most: int | None = None) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        problem = "is not a regular file"
    elif at_most is not None and found.st_size > at_most:
        problem = f"has {found.st_size:,} bytes, more than {at_most:,}"
    else:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, problem, str(path))
