"""Errors of one line, with exit code 64 if a job file, an option or a request is wrong.

raise config_error(f"nodes={nodes}: must be at least 1")
"""

from trainer.config.exits import Exit, Fault
from trainer.config.printable import printable


def config_error(text: str) -> Fault:
    """Return a Fault(64); `text` is one line: what was wrong, where, the value, what would work."""
    return Fault(Exit.CONFIG, printable(text))


def in_one_line(error: object) -> str:
    """Return an error's text without line ends."""
    return " ".join(str(error).split())
