"""The container's entrypoint: starts this node's ranks under torch's elastic agent.

It resolves the PET_* contract, waits for the master (bounded), and runs the agent in this process, so
that the ranks' exit codes survive: torchrun turns every one of them into 1, even a clean stop.

    python -m trainer.launch                            # one node: a rank per GPU, else one
    PET_NPROC_PER_NODE=2 python -m trainer.launch       # two ranks
"""

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

from trainer import health
from trainer.config.contract import Contract, resolve, table
from trainer.config.ending import exit_process
from trainer.config.environment import from_environment, variable
from trainer.config.exits import Action, Exit, Fault, codes_for
from trainer.config.settings import Settings
from trainer.launcher.fork_server import ForkServer, begin
from trainer.launcher.init import stand_in
from trainer.launcher.log import kept
from trainer.plan import auto
from trainer.plan.sizing import size
from trainer.rendezvous.connect import connect
from trainer.rendezvous.interface import choice

_HELP = """usage: python -m trainer.launch

Starts this node's ranks of a training run and ends with the exit code that speaks for them. Where the
node stands comes from torchrun's own variables: PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK,
PET_MASTER_ADDR, PET_MASTER_PORT (or PET_RDZV_BACKEND=c10d with PET_RDZV_ENDPOINT and PET_RDZV_ID),
PET_MAX_RESTARTS, PET_LOCAL_ADDR, PET_SHUTDOWN_TIMEOUT. What is trained comes from TRAINER_*:
see python -m trainer --help."""

# What a rank imports before its first step, and the agent; the models of users stay with the ranks.
_NEEDED = ("trainer.engine.loop", "torch._dynamo", "trainer.launcher.agent", "trainer.__main__")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Launch and return the exit code, as whoever started this is to see it."""
    if len(sys.argv) > 1:
        print(_HELP, file=sys.stdout if sys.argv[1] in ("-h", "--help") else sys.stderr)
        return Exit.DONE if sys.argv[1] in ("-h", "--help") else Exit.CONFIG
    for number in _SIGNALS:
        signal.signal(number, _stop_before_start)
    try:
        offset = _retry_offset(os.environ)
        return _launch(from_environment(), offset)
    except Fault as fault:
        say(f"{fault} (exit {fault.code})")
        return fault.code


def _launch(settings: Settings, retry_offset: int) -> int:
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
        # It takes seconds; refusals do without it, and nodes that wait for the master have it done.
        server = begin([*_NEEDED, f"trainer.strategies.{mode.replace('-', '_')}"])
        if server is None:
            from trainer.__main__ import train  # noqa: PLC0415

            exit_process(train(is_forked=True))
    with closing(server) if server else nullcontext(), kept(settings.run_folder / "logs") as log:
        say("this node's place\n" + table(contract))
        if log:
            say(f"all that is said here is kept in {log}")
        if threads:
            say(threads)
        return _see_through(contract, settings, server, retry_offset)


def _see_through(
    contract: Contract, settings: Settings, server: ForkServer | None, retry_offset: int
) -> int:
    health.forget(settings.health)
    sign = health.sign(settings.health, health.LAUNCHER, limit=settings.health_limit)
    try:
        if not contract.elastic and contract.node_rank > 0:
            wait_for_master(contract, timeout=settings.rendezvous_timeout)
            sign()
        _name_interface(contract)
        from trainer.launcher.agent import prepare  # noqa: PLC0415  # torch, which help does without

        with prepare(contract, settings, server) as ranks:
            for number in _SIGNALS:
                signal.signal(number, ranks.stop)
            code = ranks.run_to_end(sign)
    except Fault as fault:
        say(str(fault))
        code = fault.code
    told = reported(code, retry_offset)
    say(f"exit {told}" + (f" (that is {code})" if told != code else ""))
    return told


_RETRIED = (Action.RETRY, Action.RETRY_ELSEWHERE, Action.RETRY_PEER, Action.RETRY_FREE)


def reported(code: Exit, retry_offset: int) -> int:
    """Return the code as a controller that judges by range is told it.

    PyTorchJob's ExitCode (1-127 permanent, 128-255 retried) is told with an offset of 128. A stop is 143
    already, and 271 would reach the controller as 15.
    """
    shifted = code in codes_for(*_RETRIED) and code != Exit.STOPPED
    return code + retry_offset if shifted else int(code)


def _retry_offset(environment: Mapping[str, str]) -> int:
    text = environment.get("MUSTER_RETRY_EXIT_OFFSET") or "0"
    if not text.isdecimal() or int(text) > 128:
        raise Fault(Exit.CONFIG, f"MUSTER_RETRY_EXIT_OFFSET={text!r}: must be 0 to 128")
    return int(text)


def _stop_before_start(number: int, _: FrameType | None) -> None:
    raise Fault(Exit.STOPPED, f"{signal.Signals(number).name} before any rank was started")


def wait_for_master(contract: Contract, *, timeout: float) -> None:
    """Wait until the master's port accepts a connection. Raises Fault(69) after `timeout` seconds.

    A name that resolves is not enough: the port may open seconds later (kubeflow/pytorch-operator
    125, 333).
    """
    began = time.monotonic()
    told = False
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
            if not told:
                say(f"waiting for the master at {contract.endpoint} ({error})")
                told = True
            time.sleep(min(0.2, timeout - waited))
        else:
            return


def _count_devices() -> int:
    """Count them, where ranks are forked in a copy: a driver that was asked is of no use to a fork."""
    import torch  # noqa: PLC0415  # only where nothing says how many ranks to start

    def count() -> int:
        return torch.accelerator.device_count() if torch.accelerator.is_available() else 0

    if sys.platform != "linux":
        return count()
    told, tells = os.pipe()
    copy = os.fork()
    if copy == 0:
        try:
            os.write(tells, str(count()).encode())
        finally:
            os._exit(0)
    os.close(tells)
    with os.fdopen(told, encoding="ascii") as answer:
        counted = answer.read()
    os.waitpid(copy, 0)
    if not counted:
        raise Fault(
            Exit.MACHINE,
            "the accelerators of this node cannot be counted: what asked for them ended without an "
            "answer; PET_NPROC_PER_NODE says how many ranks to start without asking",
        )
    return int(counted)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _share_cores(ranks: int) -> str:
    """Give every rank its share of this container's cores, unless the user has said otherwise.

    Returns what to say of it. To be done before torch is imported, which reads it then.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return ""
    threads = max(1, cores() // ranks)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return f"OMP_NUM_THREADS={threads}: {cores()} cores for {ranks} ranks"


def _name_interface(contract: Contract) -> None:
    """Have gloo and NCCL use the interface that leads to the other nodes, unless told which."""
    chosen, why = choice(contract, os.environ)
    if chosen:
        os.environ |= chosen
        say(f"{', '.join(f'{name}={value}' for name, value in chosen.items())}: {why}")


def cores() -> int:
    """Return how many cores this process may use: its affinity, or its cgroup's quota if lower."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return allowed if quota == "max" else min(allowed, ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return allowed


def say(message: str) -> None:
    """Write a line for people: to standard error, since standard output carries JSON."""
    print(f"launch: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    stand_in()
    ending = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread may still wait in the rendezvous, and the interpreter would wait with it.
    os._exit(ending)
