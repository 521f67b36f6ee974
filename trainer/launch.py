"""The container's entrypoint: starts this node's ranks, and ends with one exit code for all of them.

It is a supervisor on the standard library alone. It meets the other nodes, gives each rank the variables
that torchrun gives, and starts our trainer, or any other program.

    python -m trainer.launch                            # our trainer: a rank per GPU, else one
    PET_NPROC_PER_NODE=2 python -m trainer.launch       # two ranks
    python -m trainer.launch --nproc-per-node 2 train.py --epochs 3
"""

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from trainer.config.contract import Contract, resolve, table
from trainer.config.exits import Action, Exit, Fault, codes_for
from trainer.config.log import log_to_stderr
from trainer.launcher.cores import share_cores
from trainer.launcher.fork_server import ForkServer
from trainer.launcher.log_file import log_to_file
from trainer.launcher.options import Options, from_environment
from trainer.launcher.ranks import start_command
from trainer.launcher.supervisor import SIGNALS, Program, Supervisor
from trainer.rendezvous.meeting import Meeting, secret_from

_DESCRIPTION = """Starts this node's ranks of a job and ends with one exit code for all of them. Without
a program it trains as TRAINER_* say: see python -m trainer --help. Where the node stands comes from
torchrun's own variables: PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR,
PET_MASTER_PORT (or PET_RDZV_BACKEND=c10d with PET_RDZV_ENDPOINT and PET_RDZV_ID), PET_MAX_RESTARTS,
PET_LOCAL_ADDR, PET_SHUTDOWN_TIMEOUT. An option sets the variable of its name."""

# torchrun's options; each is the PET_ variable of its name.
_OPTIONS = (
    "nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "rdzv-backend",
    "rdzv-endpoint", "rdzv-id", "max-restarts", "local-addr", "shutdown-timeout",
)  # fmt: skip

_COUNT_TIMEOUT = 120.0  # seconds; it imports torch

# The codes that MUSTER_RETRY_EXIT_OFFSET moves. 143 with 128 added would reach a controller as 15.
_MOVED_CODES = set(
    codes_for(Action.RETRY, Action.RETRY_ELSEWHERE, Action.RETRY_PEER, Action.RETRY_FREE)
) - {Exit.STOPPED}

_log = logging.getLogger("launch")


def main() -> int:
    """Launch this node's ranks and return the exit code of this process."""
    log_to_stderr()
    for number in SIGNALS:
        signal.signal(number, _stop_before_start)
    try:
        program, is_module = _take_options(sys.argv[1:])
        name, command = _name_and_command(program, is_module=is_module)
        offset, secret = _retry_offset(os.environ), secret_from(os.environ)
        with _command(name, command) if command else _trainer() as (contract, options, ranks):
            meeting = Meeting(contract, options.rules(contract), secret=secret)
            return _launch(contract, options, meeting, program=ranks, retry_offset=offset)
    except Fault as fault:
        _log.error("%s (exit %d)", fault, fault.code)
        return fault.code


def _launch(
    contract: Contract, options: Options, meeting: Meeting, *, program: Program, retry_offset: int
) -> int:
    """Supervise the ranks, with their output kept in the run folder."""
    with log_to_file(Path(options.run_folder) / "logs") as path:
        _log.info("this node's place\n%s", table(contract))
        if path:
            _log.info("the output of this node is also written to %s", path)
        if program.note:
            _log.info(program.note)
        try:
            supervisor = Supervisor(contract, options, meeting, program=program)
            for number in SIGNALS:
                signal.signal(number, supervisor.note_signal)
            code = supervisor.run()
        except Fault as fault:
            _log.error("%s", fault)
            code = fault.code
        final = reported(code, retry_offset)
        _log.info("exit %d%s", final, f" (that is {code})" if final != code else "")
    return final


@contextlib.contextmanager
def _trainer() -> Iterator[tuple[Contract, Options, Program]]:
    """Yield what is needed to run our trainer, whose settings are checked in a process of their own."""
    with contextlib.closing(ForkServer()) as server:
        facts = server.facts()
        contract = resolve(os.environ, devices=lambda: int(facts["ranks"]))
        options = Options(**facts["options"])
        if sys.platform == "linux":
            server.wait_until_imported()
            start, open_store = server.fork, server.fork_store
        else:
            start, open_store = partial(start_command, [sys.executable, "-m", "trainer"]), None
        yield (
            contract,
            options,
            Program(start, facts["environment"], True, open_store, facts["reason"]),
        )


@contextlib.contextmanager
def _command(name: str, command: Sequence[str]) -> Iterator[tuple[Contract, Options, Program]]:
    """Yield what is needed to run any other program."""
    contract = resolve(os.environ, devices=_count_devices)
    options = from_environment(os.environ, name=name)
    reason = share_cores(contract.ranks_per_node)
    yield contract, options, Program(partial(start_command, command), {}, False, None, reason)


def _take_options(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Put torchrun's options into the environment; return the program, and whether it is a module."""
    parser = _Parser(
        usage="python -m trainer.launch [option ...] [script | -m module | -- command] [argument ...]",
        description=_DESCRIPTION,
    )
    for option in _OPTIONS:
        names = {f"--{option}", f"--{option.replace('-', '_')}"}
        parser.add_argument(*sorted(names), dest=option, metavar="X", help=_variable(option))
    parser.add_argument("--standalone", action="store_true", help="one node: PET_NNODES=1")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="what each rank runs")
    found = vars(parser.parse_args(arguments))
    for option in _OPTIONS:
        if found[option] is not None:
            os.environ[_variable(option)] = found[option]
    if found["standalone"]:
        os.environ["PET_NNODES"] = "1"
    return found["program"], found["module"]


def _name_and_command(program: Sequence[str], *, is_module: bool) -> tuple[str, list[str]]:
    """Return the name and the command of a rank; no command: our trainer. Raises Fault(64)."""
    is_command = program[:1] == ["--"]
    program = program[is_command:]
    if not program:
        if is_command or is_module:
            raise Fault(Exit.CONFIG, f"no program after {'--' if is_command else '-m'}")
        return "", []
    name = Path(program[0]).stem
    if is_command:
        return name, [*program]
    if is_module:
        return program[0], [sys.executable, "-u", "-m", *program]
    if not Path(program[0]).is_file():
        raise Fault(Exit.CONFIG, f"{program[0]}: no such script; use -- before a command")
    return name, [sys.executable, "-u", *program]


def _variable(option: str) -> str:
    return f"PET_{option.replace('-', '_').upper()}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Fault(Exit.CONFIG, f"{message}; see python -m trainer.launch --help")


def reported(code: Exit, retry_offset: int) -> int:
    """Return the exit code for a controller that judges by range.

    PyTorchJob's ExitCode takes 1-127 for permanent and retries 128-255: codes to retry are moved by 128.
    """
    return code + retry_offset if code in _MOVED_CODES else int(code)


def _retry_offset(environment: Mapping[str, str]) -> int:
    text = environment.get("MUSTER_RETRY_EXIT_OFFSET") or "0"
    if not text.isdecimal() or int(text) > 128:
        raise Fault(Exit.CONFIG, f"MUSTER_RETRY_EXIT_OFFSET={text!r}: must be 0 to 128")
    return int(text)


def _stop_before_start(number: int, _: FrameType | None) -> None:
    raise Fault(Exit.STOPPED, f"{signal.Signals(number).name} before any rank was started")


def _count_devices() -> int:
    """Count the accelerators, in another process; 0 where there is no torch."""
    command = [sys.executable, "-m", "trainer.distributed.devices"]
    try:
        counted = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=_COUNT_TIMEOUT, check=True, text=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise Fault(
            Exit.MACHINE,
            f"the accelerators of this node cannot be counted: {error}; set PET_NPROC_PER_NODE to "
            "the number of ranks",
        ) from None
    return int(counted.stdout)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the interpreter would wait for a thread that may still be connecting.
    os._exit(code)
