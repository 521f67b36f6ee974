"""torchrun's command line: each option sets the PET_ variable of its name.

name, command = parse(["--nproc-per-node", "2", "train.py", "--epochs", "3"])
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.arguments import Parser
from trainer.config.exits import Exit, Fault

_DESCRIPTION = """Starts this node's ranks of a job and ends with one exit code for all of them. Without
a program it trains with the settings in TRAINER_*: see python -m trainer --help. The node's place comes
from torchrun's own variables: PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR,
PET_MASTER_PORT (or PET_RDZV_BACKEND=c10d with PET_RDZV_ENDPOINT and PET_RDZV_ID), PET_MAX_RESTARTS,
PET_LOCAL_ADDR, PET_SHUTDOWN_TIMEOUT. An option sets the variable of its name."""

_PLACE = ("node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint")
_OPTIONS = (
    "nnodes", "nproc-per-node", *_PLACE, "rdzv-id", "max-restarts", "local-addr", "shutdown-timeout",
)  # fmt: skip


def parse(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Put the options into the environment; return the name and the command of the program to run.

    Both are empty for our trainer. Raises Fault(64).
    """
    parser = Parser(
        prog="python -m trainer.launch",
        usage="%(prog)s [option ...] [script | -m module | -- command] [argument ...]",
        description=_DESCRIPTION,
    )
    for option in _OPTIONS:
        names = {f"--{option}", f"--{option.replace('-', '_')}"}
        parser.add_argument(*sorted(names), dest=option, metavar="X", help=_variable(option))
    parser.add_argument("--standalone", action="store_true", help="one node, on its own")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="what each rank runs")
    found = vars(parser.parse_args(arguments))
    for option in _OPTIONS:
        if found[option] is not None:
            os.environ[_variable(option)] = found[option]
    if found["standalone"]:
        os.environ["PET_NNODES"] = "1"
        for option in _PLACE:  # in the job whose pod this may be
            os.environ.pop(_variable(option), None)
    return _command(found["program"], is_module=found["module"])


def _command(program: list[str], *, is_module: bool) -> tuple[str, list[str]]:
    is_command = program[:1] == ["--"]
    program = program[is_command:]
    if not program:
        if is_command or is_module:
            raise Fault(Exit.CONFIG, f"no program after {'--' if is_command else '-m'}")
        return "", []
    name = Path(program[0]).stem
    if is_command:
        if shutil.which(program[0]) is None:
            hint = "; leave out -- before a script" if Path(program[0]).is_file() else ""
            raise Fault(Exit.CONFIG, f"{program[0]}: no such command, or it may not be run{hint}")
        return name, program
    if is_module:
        return program[0], [sys.executable, "-u", "-m", *program]
    if not Path(program[0]).is_file():
        raise Fault(Exit.CONFIG, f"{program[0]}: no such script; use -- before a command")
    return name, [sys.executable, "-u", *program]


def _variable(option: str) -> str:
    return f"PET_{option.replace('-', '_').upper()}"
