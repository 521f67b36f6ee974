"""A command's arguments: wrong ones are a Fault(64), not argparse's usage text and exit code 2.

parser = Parser(prog="python -m trainer.why", description="Says why a run failed.")
"""

import argparse
from typing import NoReturn

from trainer.config.exits import Exit, Fault


class Parser(argparse.ArgumentParser):
    """argparse's parser; `parse_args` raises Fault(64)."""

    def error(self, message: str) -> NoReturn:
        raise Fault(Exit.CONFIG, f"{message}; see {self.prog} --help")
