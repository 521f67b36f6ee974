"""The container's entrypoint: starts this node's ranks under torch's elastic agent.

It reads the PET_* variables, waits for the master for a bounded time, and runs the agent in this
process: torchrun would turn every exit code of a rank into 1, even that of a clean stop.

    python -m trainer.launch                            # one node: a rank per GPU, else one
    PET_NPROC_PER_NODE=2 python -m trainer.launch       # two ranks
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import FrameType
from typing import NoReturn

from trainer import health
from trainer.config.contract import Contract, resolve, table
from trainer.config.ending import exit_process
from trainer.config.environment import from_environment, variable
from trainer.config.exits import Action, Exit, Fault, codes_for
from trainer.config.log import log_to_stderr
from trainer.config.settings import Settings
from trainer.launcher import fork_server
from trainer.launcher.log_file import log_to_file
from trainer.plan import auto
from trainer.plan.sizing import size
from trainer.rendezvous.connection import connect
from trainer.rendezvous.interface import choose_interface

_HELP = """usage: python -m trainer.launch

Starts this node's ranks of a training run and ends with one exit code for all of them. Where the node
stands comes from torchrun's own variables: PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK,
PET_MASTER_ADDR, PET_MASTER_PORT (or PET_RDZV_BACKEND=c10d with PET_RDZV_ENDPOINT and PET_RDZV_ID),
PET_MAX_RESTARTS, PET_LOCAL_ADDR, PET_SHUTDOWN_TIMEOUT. What is trained comes from TRAINER_*:
see python -m trainer --help."""

# What the agent and a rank import before the first step; a user's own model is imported by each rank.
_PRELOADED = ("trainer.engine.loop", "torch._dynamo", "trainer.launcher.agent", "trainer.__main__")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# The codes that MUSTER_RETRY_EXIT_OFFSET moves. 143 with 128 added would reach a controller as 15.
_MOVED_CODES = set(
    codes_for(Action.RETRY, Action.RETRY_ELSEWHERE, Action.RETRY_PEER, Action.RETRY_FREE)
) - {Exit.STOPPED}

_log = logging.getLogger("launch")


def main() -> int:
    """Launch this node's ranks and return the exit code of this process."""
    if len(sys.argv) > 1:
        asked = sys.argv[1] in ("-h", "--help")
        print(_HELP, file=sys.stdout if asked else sys.stderr)
        return Exit.DONE if asked else Exit.CONFIG
    log_to_stderr()
    for number in _SIGNALS:
        signal.signal(number, _stop_before_start)
    try:
        offset = _retry_offset(os.environ)
        return _launch(from_environment(), offset)
    except Fault as fault:
        _log.error("%s (exit %d)", fault, fault.code)
        return fault.code


def _launch(settings: Settings, retry_offset: int) -> int:
    """Check the plan, import what ranks need, then run them with their output kept in the run folder."""
    contract = resolve(os.environ, devices=_count_devices)
    uneven = contract.min_nodes != contract.max_nodes
    sizings = [  # what does not fit is refused here, once, and not by every rank
        size(settings, nodes * contract.ranks_per_node, label=variable, uneven=uneven)
        for nodes in range(contract.min_nodes, contract.max_nodes + 1)
    ]
    mode = sizings[-1].mode
    if choice := auto.choose_on_node(settings, sizings):
        mode = choice.mode
        os.environ |= auto.as_variable(choice)
    if not contract.port:
        contract = replace(contract, port=_free_port())
    threads = _share_cores(contract.ranks_per_node)
    server = None
    if sys.platform == "linux":
        # After the checks, since it takes seconds, and before the wait for the master, to use it.
        modules = [*_PRELOADED, f"trainer.strategies.{mode.replace('-', '_')}"]
        server = fork_server.start(modules, run_rank=_train)
    with (
        closing(server) if server else nullcontext(),
        log_to_file(settings.run_folder / "logs") as path,
    ):
        _log.info("this node's place\n%s", table(contract))
        if path:
            _log.info("the output of this node is also written to %s", path)
        if threads:
            _log.info(threads)
        try:
            code = _run(contract, settings, server)
        except Fault as fault:
            _log.error("%s", fault)
            code = fault.code
        final = reported(code, retry_offset)
        _log.info("exit %d%s", final, f" (that is {code})" if final != code else "")
    return final


def _run(contract: Contract, settings: Settings, server: fork_server.ForkServer | None) -> Exit:
    """Wait for the master, run the ranks to their end, and return one code for all of them."""
    health.forget(settings.health)
    renew_health = health.sign(settings.health, health.LAUNCHER, limit=settings.health_limit)
    if not contract.elastic and contract.node_rank > 0:
        _wait_for_master(contract, timeout=settings.rendezvous_timeout)
        renew_health()
    variables, reason = choose_interface(contract, os.environ)
    if variables:
        os.environ |= variables
        text = ", ".join(f"{name}={value}" for name, value in variables.items())
        _log.info("%s: %s", text, reason)
    from trainer.launcher.agent import prepare  # noqa: PLC0415  # needs torch; --help does not

    with prepare(contract, settings, server) as agent:
        for number in _SIGNALS:
            signal.signal(number, agent.stop)
        return agent.run_to_end(renew_health)


def _train() -> NoReturn:
    """Run a forked rank."""
    from trainer.__main__ import train  # noqa: PLC0415  # needs torch

    exit_process(train(is_forked=True))


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


def _wait_for_master(contract: Contract, *, timeout: float) -> None:
    """Wait until the master's port accepts a connection. Raises Fault(69) after `timeout` seconds.

    That its name resolves is not enough: the port may open seconds later (kubeflow/pytorch-operator
    125, 333).
    """
    began = time.monotonic()
    logged = False
    while True:
        try:
            connect(contract.address, contract.port).close()
        except OSError as error:
            waited = time.monotonic() - began
            if waited >= timeout:
                raise Fault(
                    Exit.PEER,
                    f"the master, node 0, did not answer at {contract.endpoint} within "
                    f"{timeout:.0f} s (TRAINER_RENDEZVOUS_TIMEOUT); last: {error}",
                ) from None
            if not logged:
                _log.info("waiting for the master at %s (%s)", contract.endpoint, error)
                logged = True
            time.sleep(min(0.2, timeout - waited))
        else:
            return


def _count_devices() -> int:
    """Count accelerators; on Linux in a child, since a driver that was used does not survive a fork."""
    import torch  # noqa: PLC0415  # only where PET_NPROC_PER_NODE does not say

    def count() -> int:
        return torch.accelerator.device_count() if torch.accelerator.is_available() else 0

    if sys.platform != "linux":
        return count()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, str(count()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="ascii") as answer:
        counted = answer.read()
    os.waitpid(child, 0)
    if not counted:
        raise Fault(
            Exit.MACHINE,
            "the accelerators of this node cannot be counted: the driver ended the process that "
            "called it; set PET_NPROC_PER_NODE to the number of ranks",
        )
    return int(counted)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _share_cores(ranks: int) -> str:
    """Set OMP_NUM_THREADS to each rank's share of the cores, unless set; return a line for the log.

    Must be called before torch is imported, which reads it then.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return ""
    cores = _count_cores()
    threads = max(1, cores // ranks)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return f"OMP_NUM_THREADS={threads}: {cores} cores for {ranks} ranks"


def _count_cores() -> int:
    """Return how many cores this process may use: its affinity, or its cgroup's quota if lower."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return allowed if quota == "max" else min(allowed, ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return allowed


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the interpreter would wait for a thread that may still be in the rendezvous.
    os._exit(code)
