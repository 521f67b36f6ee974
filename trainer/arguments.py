"""A tool's arguments and its end: what is wrong is one line and an exit code of the table.

parser = Parser(prog="python -m trainer.why", description="Says why a run failed.")
sys.exit(run_tool("why", lambda: why(parser.parse_args().run)))
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from trainer.config.exits import Exit, Fault
from trainer.config.printable import printable


class Parser(argparse.ArgumentParser):
    """argparse's parser; `parse_args` raises Fault(64), not SystemExit(2) after a usage text."""

    def error(self, message: str) -> NoReturn:
        raise Fault(Exit.CONFIG, f"{message}; see {self.prog} --help")


def run_tool(name: str, lines: Callable[[], Iterable[str]]) -> int:
    """Print what `lines` returns, each when it comes, and return the exit code.

    A Fault is one line on stderr and its code; Ctrl-C is 130.
    """
    try:
        for line in lines():
            try:
                print(line, flush=True)
            except BrokenPipeError:  # `| head`; the rest is still done, for the exit code
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Fault as fault:
        print(f"{name}: {printable(str(fault))} (exit {fault.code:d})", file=sys.stderr)
        return fault.code
    except KeyboardInterrupt:
        return 130
    return Exit.DONE
