"""Our messages on stderr, together with logging that a task configures."""

import sys

from tests.conftest import run_command

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
    done = run_command([sys.executable, "-c", PROGRAM], check=True)
    assert done.stderr.splitlines() == [
        "trainer: first",
        "task: shown",
        "[trainer] second",
        "[task] third",
    ]
