"""Human-readable messages go to stderr, a line each: `logging.getLogger("trainer").info("resumed")`.

Entry points call `log_to_stderr` once. Standard output carries JSON events only.
"""

import logging

from trainer.config.printable import printable

# The loggers of this project; the name stands before each line.
NAMES = ("trainer", "launch", "k8s")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the message for a terminal: it may quote a file, a pod or another machine."""
        return "\n".join(map(printable, super().format(record).split("\n")))


def log_to_stderr() -> None:
    """Show messages of ours from INFO on, and warnings of libraries, on stderr.

    A task that configures the root logger gets all of them in its own format instead.
    """
    # A handler of ours on the root logger would make a task's `logging.basicConfig` do nothing, one on
    # our loggers would print each line twice. Python uses the last resort where no other handler is.
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.INFO)
        logging.lastResort.setFormatter(_Formatter("%(name)s: %(message)s"))
    for name in NAMES:
        logging.getLogger(name).setLevel(logging.INFO)
