"""Our messages on stderr, together with logging that a task configures."""

import subprocess
import sys

PROGRAM = """
import logging
from trainer.config.log import log_to_stderr
log_to_stderr()
ours, theirs = logging.getLogger("trainer"), logging.getLogger("task")
ours.info("first"), theirs.info("hidden"), theirs.warning("shown")
logging.basicConfig(level=logging.INFO, format="[%(name)s] %(message)s")
ours.info("second"), theirs.info("third")
"""


def test_a_task_may_configure_logging_and_no_line_is_printed_twice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True
    )
    assert done.stderr.splitlines() == [
        "trainer: first",
        "task: shown",
        "[trainer] second",
        "[task] third",
    ]
