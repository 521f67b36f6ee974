"""Messages for people go to stderr, one line each: `logging.getLogger("trainer").info("resumed")`.

Entry points call `log_to_stderr` once. Standard output carries JSON events only.
"""

import logging

from trainer.config.printable import printable

# The loggers of this project; each line begins with the name.
NAMES = ("trainer", "launch", "k8s")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the message for a terminal: it may quote a file, a pod or another machine."""
        return "\n".join(map(printable, super().format(record).split("\n")))


def log_to_stderr() -> None:
    """Show our messages from level INFO, and warnings of libraries, on stderr.

    If a task configures the root logger, all of them go there in its format.
    """
    # If the root logger had a handler of ours, a task's `logging.basicConfig` would do nothing. If our
    # loggers had one, each line would appear twice. Python uses the last resort if there is no handler.
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.INFO)
        logging.lastResort.setFormatter(_Formatter("%(name)s: %(message)s"))
    for name in NAMES:
        logging.getLogger(name).setLevel(logging.INFO)
