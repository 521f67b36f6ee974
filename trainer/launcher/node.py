"""A node's part of a job, from its environment variables to its exit code.

code = run(ForkServer(), name="", command=[])               # our trainer
code = run(None, name="train", command=["python", "train.py"])
"""

import logging
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path

from trainer.config.contract import Contract, resolve, table
from trainer.config.exits import PROFILE_SIGNAL, STOP_SIGNALS, Action, Exit, Fault, codes_for
from trainer.launcher.fork_server import ForkServer
from trainer.launcher.hardware import count_devices, share_cores
from trainer.launcher.output.log_file import log_to_file
from trainer.launcher.output.run_events import RunEvents
from trainer.launcher.program.options import Options, from_environment, whole
from trainer.launcher.ranks import Program, start_command
from trainer.launcher.supervisor import Supervisor
from trainer.rendezvous.events import Round
from trainer.rendezvous.meeting import Meeting, secret_from

_LONGEST = 4000  # characters of a command in the launch event

# The codes that MUSTER_RETRY_EXIT_OFFSET moves. 143 with 128 added would reach a controller as 15.
_MOVED_CODES = set(
    codes_for(Action.RETRY, Action.RETRY_ELSEWHERE, Action.RETRY_PEER, Action.RETRY_FREE)
) - {Exit.STOPPED}

_log = logging.getLogger("launch")


def run(server: ForkServer | None, *, name: str, command: Sequence[str]) -> int:
    """Run the ranks of a command, or of our trainer by `server`; return the exit code. Raises Fault."""
    with closing(server) if server else nullcontext():
        offset = retry_offset()
        secret = secret_from(os.environ)
        contract, options, program = _trainer(server) if server else _command(name, command)
        meeting = Meeting(contract, options.rules(contract), secret=secret)
        with log_to_file(Path(options.run_folder) / "logs") as path:
            _log.info("this node's place\n%s", table(contract))
            if path:
                _log.info("the output of this node is also written to %s", path)
            if program.note:
                _log.info(program.note)
            try:
                supervisor = Supervisor(contract, options, meeting, program=program)
                for number in (*STOP_SIGNALS, PROFILE_SIGNAL):
                    if number == PROFILE_SIGNAL or signal.getsignal(number) is not signal.SIG_IGN:
                        signal.signal(number, supervisor.note_signal)
                code = supervisor.run()
            except Fault as fault:
                _log.error("%s", fault)
                code = fault.code
            final = reported(code, offset)
            _log.info("exit %d%s", final, f" (that is {code})" if final != code else "")
        return final


def _trainer(server: ForkServer) -> tuple[Contract, Options, Program]:
    """Return what is needed to run our trainer; `server` has checked its settings."""
    facts = server.facts()
    contract = resolve(os.environ, devices=lambda: int(facts["ranks"]))
    if sys.platform == "linux":
        server.wait_until_imported()
        start, open_store = server.fork, server.fork_store
    else:
        start, open_store = partial(start_command, [sys.executable, "-m", "trainer"]), None
    program = Program(start, lambda *_: facts["environment"], True, open_store, facts["reason"])
    return contract, Options(**facts["options"]), program


def _command(name: str, command: Sequence[str]) -> tuple[Contract, Options, Program]:
    """Return what is needed to run any other program."""
    contract = resolve(os.environ, devices=count_devices)
    options = from_environment(os.environ, name=name)
    reason = share_cores(contract.ranks_per_node)
    out = Path(options.run_folder).absolute()

    events = RunEvents(
        out,
        program={"program": name, "command": shlex.join(sys.argv[1:])[:_LONGEST]},
        patterns=options.patterns,
        metrics_port=options.metrics_port,
    )

    def variables(place: Round, folder: Path) -> dict[str, str]:
        events.begin(place, folder)
        checkpoints = out / "checkpoints"
        with suppress(OSError):  # the program will fail when it writes
            checkpoints.mkdir(parents=True, exist_ok=True)
        is_restart = checkpoints.is_dir() and any(checkpoints.iterdir())
        return {
            "TRAINER_OUT": str(out),
            "MUSTER_CHECKPOINTS": str(checkpoints),
            "MUSTER_RESTART": str(int(is_restart)),
            "MUSTER_EVENTS": str(events.file or os.devnull),
        }

    start = partial(start_command, command)
    return contract, options, Program(start, variables, False, None, reason, events)


def retry_offset() -> int:
    """Return the number that is added to some exit codes. Raises Fault(64)."""
    return whole(os.environ, "MUSTER_RETRY_EXIT_OFFSET", most=128, wanted="0 to 128")


def reported(code: Exit, retry_offset: int) -> int:
    """Return the exit code for a controller that decides by its range.

    PyTorchJob's ExitCode treats 1-127 as permanent and retries 128-255. So 128 is added to codes that
    are to be retried.
    """
    return code + retry_offset if code in _MOVED_CODES else int(code)
