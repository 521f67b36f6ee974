"""torch's elastic agent, changed so that each signal reaches the ranks once and exit codes survive.

The agent runs in a thread; the main thread handles signals. In the main thread the agent would not
notice a signal while it waits for peers in C++, and would orphan its ranks at a second one.

    with prepare(contract, settings, fork_server) as agent:
        code = agent.run_to_end(renew_health)

Private names of torch.distributed.elastic that are used here and in torch_processes.py alone:

    _assign_worker_ranks       overridden: torch's waits up to 300 s for what every node writes to the
                               store, even for a node that is lost by then
    _start_workers             overridden: no rank may start once a signal has stopped the node
    _stop_workers              overridden: it would let a rank that lost a peer use its time to stop
    _monitor_workers           overridden: the place to learn of membership changes while ranks run
    _restart_workers           called, to start the next round without counting a restart
    _shutdown                  called by our _stop_workers, as torch's does
    _remaining_restarts        set to 0 after an exit code that a restart can not change
    _pcontext                  read: the ranks' processes and their error files
    get_subprocess_handler     replaced, so that ranks are forked; torch has no parameter for it
    SubprocessHandler._popen, _stdout, _stderr    the one method that starts a process, and its files
"""

import contextlib
import enum
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SubprocessContext

from trainer import health
from trainer.config.contract import Contract
from trainer.config.exits import Action, Exit, Fault, codes_for
from trainer.config.settings import Settings
from trainer.distributed.runtime import as_fault
from trainer.launcher import peer_losses
from trainer.launcher.failures import report_failures
from trainer.launcher.fork_server import ForkServer
from trainer.launcher.rank_output import RankOutput
from trainer.launcher.torch_processes import RankLogs, fork_ranks_from
from trainer.rendezvous.client import MembershipEvent
from trainer.rendezvous.torch_handler import TorchRendezvousHandler
from trainer.watch.cgroup import oom_kills

_log = logging.getLogger("launch")

_EXIT_BARRIER_SECONDS = 30  # nodes end within seconds of each other, after the ranks' last barrier

# Exit codes after which restarting the ranks in place can not help.
_FINAL = {*codes_for(Action.FAIL), int(Exit.STOPPED), -signal.SIGTERM}

# Exit codes of ranks that stopped or lost a peer, and could train on with other nodes.
_RESUMABLE = {int(Exit.STOPPED), int(Exit.PEER), -signal.SIGTERM}


class Peers(enum.Enum):
    """What is known of the other nodes; the value is how long the ranks here may still run, in seconds.

    It lets ranks that are about to end anyway do so with the exit code of the cause.
    """

    PRESENT = float("inf")
    FINISHED = 15.0  # the ranks here should be finishing, too
    LOST = 1.0  # possibly because of a failure here
    LOST_AFTER_FAILURE = 4.0  # a rank here has reported a failure, and is exiting with it
    SILENT = 0.0  # not because of a failure here


class LauncherAgent(LocalElasticAgent):
    """Runs this node's ranks. `stop` is a signal handler."""

    def __init__(
        self, contract: Contract, settings: Settings, output: RankOutput, *, folder: str
    ) -> None:
        self._handler = TorchRendezvousHandler(contract, settings)
        spec = WorkerSpec(
            role="trainer",
            local_world_size=contract.ranks_per_node,
            rdzv_handler=self._handler,
            entrypoint=sys.executable,
            args=("-m", "trainer"),
            max_restarts=contract.max_restarts,
            local_addr=contract.local_address,
        )
        super().__init__(spec, RankLogs(folder, output), exit_barrier_timeout=_EXIT_BARRIER_SECONDS)
        self._contract = contract
        self._settings = settings
        self._output = output
        self._lock = threading.RLock()  # ranks are either started or stopped
        self._stopping = False
        self._pids: list[int] = []
        self._oom_kills = oom_kills()

    def run_to_end(self, renew_health: Callable[[], None]) -> Exit:
        """Start the ranks, wait for their end, and return one exit code for all of them.

        Calls `renew_health` all the time. Raises Fault.
        """
        ending = Exit.CODE
        try:
            ending = self._run_in_thread(renew_health)
            if ending == Exit.PEER:
                raise Fault(Exit.PEER, "the ranks lost a peer")  # noqa: TRY301  # counted below
        except Fault as fault:
            counted = self._count_if_peer_lost(fault)
            ending = counted.code
            raise counted from None
        finally:
            self._handler.leave(ending)
            self._handler.close()
        return ending

    def _run_in_thread(self, renew_health: Callable[[], None]) -> Exit:
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
                renew_health()
        finally:
            self._signal_groups(signal.SIGKILL)  # loader workers that a killed rank left behind
            self._output.drain()  # so that the launcher's own last lines come last
        if isinstance(outcome[0], Exception):
            raise as_fault(outcome[0])
        return report_failures(outcome[0], self._oom_kills)

    def _count_if_peer_lost(self, fault: Fault) -> Fault:
        """Count a lost peer, on the server's node for all; too many make it a failure, 70."""
        if fault.code != Exit.PEER or self._stopping or not self._handler.is_server:
            return fault
        return peer_losses.count(self._settings, str(fault))

    def stop(self, number: int, _: FrameType | None) -> None:
        """Send SIGTERM to the ranks once, and SIGKILL after PET_SHUTDOWN_TIMEOUT.

        A second SIGTERM changes nothing, a second Ctrl-C kills at once. Raises Fault(143) when no
        rank has been started.
        """
        with self._lock:
            repeated, self._stopping = self._stopping, True
            self._handler.leaving = True
            if not self._pids:
                name = signal.Signals(number).name
                raise Fault(Exit.STOPPED, f"{name} before any rank was started")
            if repeated and number == signal.SIGINT:
                self._signal_groups(signal.SIGKILL)
            if repeated:
                return
            for pid in self._pids:  # not their groups: ranks still need their loader workers
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            timer = threading.Timer(
                self._contract.shutdown_timeout, self._signal_groups, (signal.SIGKILL,)
            )
            timer.daemon = True
            timer.start()

    def _assign_worker_ranks(self, *_: object) -> list[Worker]:
        """Number this node's ranks as the rendezvous server has."""
        found = self._handler.round
        assert found is not None  # noqa: S101  # next_rendezvous has just set it
        return [
            Worker(
                local_rank=local,
                global_rank=found.first_rank + local,
                role_rank=found.first_rank + local,
                world_size=found.world_size,
                role_world_size=found.world_size,
            )
            for local in range(self._contract.ranks_per_node)
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._lock:
            if self._stopping:
                raise Fault(Exit.STOPPED, "stopped before any rank was started")
            settings = self._settings
            for rank in range(
                self._contract.ranks_per_node
            ):  # it may hang before it renews its own
                health.sign(settings.health, health.rank(rank), limit=settings.health_limit)
            pids: dict[int, Any] = super()._start_workers(worker_group)
            self._pids = list(pids.values())
            return pids

    def _stop_workers(self, _: WorkerGroup) -> None:
        """Stop the ranks so that they save; ranks that lost a peer can not, and are killed."""
        lost = "" if self._handler.clean else "the ranks lost a peer"
        if event := self._handler.client.membership_changed:
            _log.info("%s; starting the next round", event.reason)
            if event.lost:
                lost = event.reason
                self._signal_groups(signal.SIGKILL)
        if lost and (fault := self._count_if_peer_lost(Fault(Exit.PEER, lost))).code != Exit.PEER:
            raise fault
        if self._pcontext is not None:  # with our time-out; not every torch passes one to _shutdown
            self._pcontext.close(signal.SIGTERM, timeout=self._contract.shutdown_timeout)
        self._shutdown()
        with self._lock:
            self._signal_groups(signal.SIGKILL)  # loader workers
            self._pids = []

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._wake_suspended_ranks()
        result: RunResult = super()._monitor_workers(worker_group)
        codes = {failure.exitcode for failure in result.failures.values()}
        if result.state == WorkerState.HEALTHY:
            self._end_if_peers_ended()
        elif self._contract.elastic and codes and codes <= _RESUMABLE and not self._stopping:
            self._handler.clean = Exit.PEER not in codes
            self._restart_workers(worker_group)
            self._handler.clean = True
            return RunResult(WorkerState.HEALTHY)
        elif self._stopping or codes & _FINAL:
            self._remaining_restarts = 0
        return result

    def _wake_suspended_ranks(self) -> None:
        """Once a rank has ended, send SIGCONT to all: torch's SIGTERM does not reach a suspended one."""
        context = self._pcontext
        assert isinstance(context, SubprocessContext)  # noqa: S101  # since the spec has a command
        if any(rank.proc.poll() is not None for rank in context.subprocess_handlers.values()):
            self._signal_groups(signal.SIGCONT)

    def _end_if_peers_ended(self) -> None:
        """Kill the ranks once they have outlived their peers for too long. Raises Fault(69).

        Where a rank has reported a failure, that becomes the outcome instead.
        """
        peers, event = self._peers()
        if event is None or (elapsed := time.monotonic() - event.since) < peers.value:
            return
        self._signal_groups(signal.SIGKILL)
        time_to_end = peers.value + Peers.LOST_AFTER_FAILURE.value
        if self._has_reported_failure() and elapsed < time_to_end:
            self._remaining_restarts = 0  # the next _monitor_workers finds the ranks ended
            return
        raise Fault(Exit.PEER, f"lost a peer: {event.reason}")

    def _peers(self) -> tuple[Peers, MembershipEvent | None]:
        client = self._handler.client
        if event := client.peer_lost:
            if event.silent:
                return Peers.SILENT, event
            return Peers.LOST_AFTER_FAILURE if self._has_reported_failure() else Peers.LOST, event
        return Peers.FINISHED if client.peer_finished else Peers.PRESENT, client.peer_finished

    def _has_reported_failure(self) -> bool:
        """Return whether a rank here has written its error file (trainer/config/ending.py)."""
        context = self._pcontext
        return context is not None and any(map(os.path.exists, context.error_files.values()))

    def _signal_groups(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)


@contextlib.contextmanager
def prepare(
    contract: Contract, settings: Settings, server: ForkServer | None
) -> Iterator[LauncherAgent]:
    """Yield the agent, with no rank started yet. Without a fork server each rank starts Python anew."""
    if server is not None:
        fork_ranks_from(server)
    os.environ["MUSTER_AGENT"] = str(os.getpid())  # ranks leave it to us to report their errors
    if "LOGLEVEL" not in os.environ:  # torch's own switch; what it would log, we report
        for name in logging.root.manager.loggerDict:
            if name.startswith("torch.distributed.elastic"):
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with (
        tempfile.TemporaryDirectory(prefix="muster-") as folder,
        contextlib.closing(RankOutput(contract.ranks_per_node)) as output,
    ):
        yield LauncherAgent(contract, settings, output, folder=folder)
