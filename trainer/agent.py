"""torch's elastic agent, run so that signals reach the ranks once and their exit codes survive.

The agent works in a thread and the main thread is left to the signals: in the main thread it would
not hear one while it waits for its peers in C++, and would answer a second one by orphaning ranks.
Used by `python -m trainer.launch`.
"""

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from trainer.contract import Contract
from trainer.exits import Action, Exit, Fault, codes_for, combine
from trainer.runtime import as_fault

# Nodes end within seconds of each other: the ranks' last act is a barrier.
_EXIT_BARRIER_SECONDS = 30

# Restarting the ranks in place cannot help after these.
_FINAL = {*codes_for(Action.FAIL), int(Exit.STOPPED), -signal.SIGTERM}


class Ranks(LocalElasticAgent):
    """This node's ranks. `stop` is a signal handler; `run_to_end` returns the code for them all."""

    def __init__(self, contract: Contract, *, rendezvous_timeout: int, folder: str) -> None:
        spec = WorkerSpec(
            role="trainer",
            local_world_size=contract.ranks_per_node,
            rdzv_handler=_rendezvous(contract, rendezvous_timeout),
            entrypoint=sys.executable,
            args=("-m", "trainer"),
            max_restarts=contract.max_restarts,
            master_addr=None if contract.elastic else contract.address,
            master_port=None if contract.elastic else contract.port,
            local_addr=contract.local_address,
        )
        super().__init__(
            spec,
            DefaultLogsSpecs(log_dir=folder),
            exit_barrier_timeout=_EXIT_BARRIER_SECONDS,
        )
        self._contract = contract
        self._gate = threading.RLock()  # between starting ranks and stopping them
        self._stopping = False
        self._pids: list[int] = []

    def run_to_end(self) -> Exit:
        """Start the ranks, see them through, and return the code that speaks for them."""
        outcome: list[RunResult | Exception] = []

        def work() -> None:
            try:
                outcome.append(self.run())
            except Exception as error:  # noqa: BLE001  # raised below, in the main thread
                outcome.append(error)

        thread = threading.Thread(target=work, name="agent", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(timeout=0.2)
        finally:
            self._signal_groups(signal.SIGKILL)  # what a killed rank left behind: loader workers
        if isinstance(outcome[0], Exception):
            raise _explain(outcome[0], self._contract)
        return _verdict(outcome[0])

    def stop(self, number: int, _: FrameType | None) -> None:
        """Hand a signal to the ranks, once, as SIGTERM; kill them if they outstay the time to stop.

        A second SIGTERM changes nothing, a second Ctrl-C kills at once. Raises Fault(143) when no
        rank was started yet.
        """
        with self._gate:
            again, self._stopping = self._stopping, True
            if not self._pids:
                raise Fault(
                    Exit.STOPPED, f"{signal.Signals(number).name} before any rank was started"
                )
            if again and number == signal.SIGINT:
                self._signal_groups(signal.SIGKILL)
            if again:
                return
            for pid in self._pids:  # not their groups: the loader workers are still needed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            timer = threading.Timer(
                self._contract.shutdown_timeout, self._signal_groups, (signal.SIGKILL,)
            )
            timer.daemon = True
            timer.start()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._gate:
            if self._stopping:
                raise Fault(Exit.STOPPED, "stopped before any rank was started")
            ids: dict[int, Any] = super()._start_workers(worker_group)
            self._pids = list(ids.values())
            return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        final = any(failure.exitcode in _FINAL for failure in result.failures.values())
        if self._stopping or final:
            self._remaining_restarts = 0
        return result

    def _signal_groups(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)


@contextlib.contextmanager
def prepare(contract: Contract, *, rendezvous_timeout: int) -> Iterator[Ranks]:
    """Yield the ranks, not yet started, with a folder for what they say when they fail."""
    # A rank leaves its error to the agent, which tells it once; see trainer/__main__.py.
    os.environ["MUSTER_AGENT"] = str(os.getpid())
    _silence_torch()
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        yield Ranks(contract, rendezvous_timeout=rendezvous_timeout, folder=folder)


def _rendezvous(contract: Contract, timeout: int) -> RendezvousHandler:
    own: dict[str, Any] = {"rank": contract.node_rank, "timeout": timeout}
    if contract.elastic:
        own = {"join_timeout": timeout}
    parameters = RendezvousParameters(
        backend="c10d" if contract.elastic else "static",
        endpoint=contract.endpoint,
        run_id=contract.rendezvous_id,
        min_nodes=contract.min_nodes,
        max_nodes=contract.max_nodes,
        local_addr=contract.local_address,
        **own,
    )
    return get_rendezvous_handler(parameters)


def _silence_torch() -> None:
    """Leave the telling to us, unless LOGLEVEL, torch's own switch, asks for more."""
    if "LOGLEVEL" not in os.environ:
        for name in logging.root.manager.loggerDict:
            if name.startswith("torch.distributed.elastic"):
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _explain(error: Exception, contract: Contract) -> Fault:
    text = str(error)
    if joined := re.search(r"(\d+)/(\d+) clients joined", text):
        return Fault(
            Exit.PEER,
            f"only {joined[1]} of {joined[2]} nodes came to the rendezvous at {contract.endpoint} "
            "in time (TRAINER_RENDEZVOUS_TIMEOUT)",
        )
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        return Fault(
            Exit.PEER, f"port {contract.port} is in use on this machine; set PET_MASTER_PORT"
        )
    return as_fault(error)


def _verdict(result: RunResult) -> Exit:
    """Tell why ranks failed, the cause with its traceback, and return the code for them all."""
    failures = {rank: _Failure.of(failure) for rank, failure in result.failures.items()}
    verdict = combine(failure.code for failure in failures.values())
    if verdict == Exit.STOPPED:
        return verdict
    causes = [rank for rank, failure in failures.items() if combine([failure.code]) == verdict]
    first = min(causes, key=lambda rank: failures[rank].timestamp, default=None)
    for rank in sorted(failures, key=lambda rank: rank != first):
        failure = failures[rank]
        trace = failure.trace if rank == first else ""
        line = f"launch: rank {rank}: {failure.message} (exit {failure.code})"
        print(f"{trace}{line}", file=sys.stderr, flush=True)
    return verdict


@dataclass(frozen=True)
class _Failure:
    """What a failed rank said of itself, or what its exit code says where it could not."""

    code: int
    message: str
    trace: str
    timestamp: int

    @classmethod
    def of(cls, failure: ProcessFailure) -> Self:
        said = failure.error_file_data.get("message")
        if isinstance(said, dict):  # written by trainer/__main__.py
            trace = said["extraInfo"]["py_callstack"]
            return cls(said["errorCode"], said["message"], trace, failure.timestamp)
        # SIGTERM ended it at once: it had no handler yet, so there was no step to save.
        early = failure.exitcode == -signal.SIGTERM
        code = int(Exit.STOPPED) if early else failure.exitcode
        return cls(code, str(failure.message), "", failure.timestamp)
