"""Open only regular files, and only of a size that they may have: a path may lead to a pipe or a device.

with open_regular(path, at_most=1 << 20) as file: ...
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path | str, *, at_most: int | None = None) -> BinaryIO:
    """Open a file to read, without waiting for the other end of a pipe.

    Raises OSError, also for what is no regular file or has more than `at_most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        problem = "is not a regular file"
    elif at_most is not None and found.st_size > at_most:
        problem = f"has {found.st_size:,} bytes, more than {at_most:,}"
    else:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, problem, str(path))
