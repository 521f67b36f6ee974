"""`python -m k8s VERB`: runs a verb of `k8s/cli/verbs/` and ends with its exit code.

python -m k8s status digits-ddp
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from k8s.cli.verbs import app
from trainer.config.exits import Exit, Fault
from trainer.config.log import log_to_stderr

log = logging.getLogger("k8s")


def main() -> int:
    """Run a verb and return the exit code."""
    log_to_stderr()
    code: Any = Exit.DONE
    try:
        command: Callable[..., Any] = typer.main.get_command(app)
        code = command(standalone_mode=False)
        sys.stdout.flush()
    except Fault as fault:
        log.error("%s (exit %d)", fault, fault.code)  # noqa: TRY400  # one line
        return fault.code
    except typer.Abort:
        return 130
    except (BrokenPipeError, SystemExit) as error:  # typer and rich make it sys.exit(1)
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader has closed the pipe, e.g. head. Python would fail again at the final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except typer.TyperException as error:
        text = error.format_message()
        log.error("%s (exit %d); --help lists the verbs", text, Exit.CONFIG)  # noqa: TRY400
        return Exit.CONFIG
    return code if isinstance(code, int) else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
