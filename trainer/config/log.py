"""Human-readable messages go to stderr, a line each: `logging.getLogger("trainer").info("resumed")`.

Entry points call `log_to_stderr` once. Standard output carries JSON events only.
"""

import logging

# The loggers of this project; the name stands before each line.
NAMES = ("trainer", "launch", "k8s")


def log_to_stderr() -> None:
    """Show messages of ours from INFO on, and warnings of libraries, on stderr."""
    logging.basicConfig(format="%(name)s: %(message)s")
    for name in NAMES:
        logging.getLogger(name).setLevel(logging.INFO)
