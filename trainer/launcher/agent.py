"""torch's elastic agent, run so that signals reach the ranks once and their exit codes survive.

The agent works in a thread and the main thread is left to the signals: in the main thread it would
not hear one while it waits for its peers in C++, and would answer a second one by orphaning ranks.
Used by `python -m trainer.launch`.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SubprocessContext

from trainer import health
from trainer.config.contract import Contract
from trainer.config.exits import Action, Exit, Fault, codes_for
from trainer.config.settings import Settings
from trainer.distributed.runtime import as_fault
from trainer.launcher import peer_losses
from trainer.launcher.failures import tell
from trainer.launcher.fork_server import ForkServer
from trainer.launcher.output import Output, carried
from trainer.launcher.process import take_from
from trainer.rendezvous.rendezvous import Rendezvous
from trainer.watch.cgroup import oom_kills

# Nodes end within seconds of each other: the ranks' last act is a barrier.
_EXIT_BARRIER_SECONDS = 30

# Restarting the ranks in place cannot help after these.
_FINAL = {*codes_for(Action.FAIL), int(Exit.STOPPED), -signal.SIGTERM}

# Of ranks that could go on with other nodes: they stopped together, or lost one that they talked to.
_PARTED = {int(Exit.STOPPED), int(Exit.PEER), -signal.SIGTERM}

# Time for our own ranks to end with the cause, when a node is gone because of them.
_GRACE_SECONDS = 1

# The same, once one of them has said its cause and is on its way out.
_TOLD_SECONDS = 4

# Time for our own ranks to end when those of another node have, in order.
_SETTLE_SECONDS = 15


class Ranks(LocalElasticAgent):
    """This node's ranks. `stop` is a signal handler; `run_to_end` returns the code for them all."""

    def __init__(
        self, contract: Contract, settings: Settings, output: Output, *, folder: str
    ) -> None:
        self._roll = Rendezvous(contract, settings)
        spec = WorkerSpec(
            role="trainer",
            local_world_size=contract.ranks_per_node,
            rdzv_handler=self._roll,
            entrypoint=sys.executable,
            args=("-m", "trainer"),
            max_restarts=contract.max_restarts,
            local_addr=contract.local_address,
        )
        super().__init__(
            spec,
            _Logs(folder, output),
            exit_barrier_timeout=_EXIT_BARRIER_SECONDS,
        )
        self._contract = contract
        self._output = output
        self._gate = threading.RLock()  # between starting ranks and stopping them
        self._stopping = False
        self._pids: list[int] = []
        self._settings = settings
        self._kills = oom_kills()

    def run_to_end(self, sign: Callable[[], None]) -> Exit:
        """Start the ranks, see them through, and return the code that speaks for them.

        Meanwhile `sign` is called again and again.
        """
        ending = Exit.CODE
        try:
            ending = self._run_in_thread(sign)
            if ending == Exit.PEER:
                raise Fault(Exit.PEER, "the ranks lost a peer")  # noqa: TRY301  # counted below
        except Fault as fault:
            counted = self._counted(fault)
            ending = counted.code
            raise counted from None
        finally:
            self._roll.leave(ending)
            self._roll.close()
        return ending

    def _counted(self, fault: Fault) -> Fault:
        """Count a lost peer, on one node for all; return what it amounts to."""
        if fault.code != Exit.PEER or self._stopping or not self._roll.is_kept_here:
            return fault
        return peer_losses.verdict(self._settings, str(fault))

    def _run_in_thread(self, sign: Callable[[], None]) -> Exit:
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
                sign()
        finally:
            self._signal_groups(signal.SIGKILL)  # what a killed rank left behind: loader workers
            self._output.drain()  # before the last word, which is ours
        if isinstance(outcome[0], Exception):
            raise as_fault(outcome[0])
        return tell(outcome[0], self._kills)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Hand a signal to the ranks, once, as SIGTERM; kill them if they outstay the time to stop.

        A second SIGTERM changes nothing, a second Ctrl-C kills at once. Raises Fault(143) when no
        rank was started yet.
        """
        with self._gate:
            again, self._stopping = self._stopping, True
            self._roll.leaving = True
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

    def _assign_worker_ranks(self, *_: object) -> list[Worker]:
        """Number this node's ranks, as the roll says.

        torch's own waits up to 300 s for what every node writes to the store, deaf to news: of a node
        that was lost after it was counted in, it never comes.
        """
        place = self._roll.round
        assert place is not None  # noqa: S101  # next_rendezvous has just set it
        return [
            Worker(
                local_rank=local,
                global_rank=place.first_rank + local,
                role_rank=place.first_rank + local,
                world_size=place.world_size,
                role_world_size=place.world_size,
            )
            for local in range(self._contract.ranks_per_node)
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._gate:
            if self._stopping:
                raise Fault(Exit.STOPPED, "stopped before any rank was started")
            limit = self._settings.health_limit
            for rank in range(self._contract.ranks_per_node):  # one that never gets to its own
                health.sign(self._settings.health, health.rank(rank), limit=limit)
            ids: dict[int, Any] = super()._start_workers(worker_group)
            self._pids = list(ids.values())
            return ids

    def _stop_workers(self, _: WorkerGroup) -> None:
        """Have the ranks save and end; those that talk to a lost node cannot, and are killed."""
        lost = "" if self._roll.clean else "the ranks lost a peer"
        if news := self._roll.member.change:
            print(f"launch: {news.reason}; on to the next round", file=sys.stderr, flush=True)
            if news.lost:
                lost = news.reason
                self._signal_groups(signal.SIGKILL)
        if lost and (counted := self._counted(Fault(Exit.PEER, lost))).code != Exit.PEER:
            raise counted
        if self._pcontext is not None:  # with our time; not every torch lets _shutdown have it
            self._pcontext.close(signal.SIGTERM, timeout=self._contract.shutdown_timeout)
        self._shutdown()
        with self._gate:
            self._signal_groups(signal.SIGKILL)  # what they left behind: loader workers
            self._pids = []

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._wake_the_stopped()
        result: RunResult = super()._monitor_workers(worker_group)
        codes = {failure.exitcode for failure in result.failures.values()}
        if result.state == WorkerState.HEALTHY:
            self._end_if_others_have()
        elif self._contract.elastic and codes and codes <= _PARTED and not self._stopping:
            return self._go_on_with_who_is_there(worker_group, lost=int(Exit.PEER) in codes)
        elif self._stopping or codes & _FINAL:
            self._remaining_restarts = 0
        return result

    def _wake_the_stopped(self) -> None:
        """Let ranks that SIGSTOP holds hear the SIGTERM that follows when one of them has ended."""
        started = self._pcontext
        assert isinstance(started, SubprocessContext)  # noqa: S101  # what a command makes
        if any(rank.proc.poll() is not None for rank in started.subprocess_handlers.values()):
            self._signal_groups(signal.SIGCONT)

    def _end_if_others_have(self) -> None:
        """End ranks that wait for a node that is no more. Raises Fault(69).

        Unless one has left word of a failure of its own: that is then told, as if it had ended itself.
        """
        member, now, told = self._roll.member, time.monotonic(), self._told()
        news = member.broken
        wait = 0 if news and news.silent else _TOLD_SECONDS if told else _GRACE_SECONDS
        if news is None:
            news, wait = member.over, _SETTLE_SECONDS
        if news is None or now - news.since < wait:
            return
        self._signal_groups(signal.SIGKILL)
        if told and now - news.since < wait + _TOLD_SECONDS:
            self._remaining_restarts = 0
            return
        raise Fault(Exit.PEER, f"lost a peer: {news.reason}")

    def _told(self) -> bool:
        """Return whether a rank here has left word of a failure (`ending.tell`)."""
        started = self._pcontext
        return started is not None and any(map(os.path.exists, started.error_files.values()))

    def _go_on_with_who_is_there(self, worker_group: WorkerGroup, *, lost: bool) -> RunResult:
        """Start the ranks anew with the nodes that are there; no restart is counted for it."""
        self._roll.clean = not lost
        self._restart_workers(worker_group)
        self._roll.clean = True
        return RunResult(WorkerState.HEALTHY)

    def _signal_groups(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)


@contextlib.contextmanager
def prepare(contract: Contract, settings: Settings, server: ForkServer | None) -> Iterator[Ranks]:
    """Yield the ranks, not yet started, with a folder for what they say when they fail.

    Without a server each is a process of its own from the start.
    """
    if server is not None:
        take_from(server)
    # A rank leaves its error to the agent, which tells it once; see trainer/__main__.py.
    os.environ["MUSTER_AGENT"] = str(os.getpid())
    _silence_torch()
    with (
        tempfile.TemporaryDirectory(prefix="muster-") as folder,
        carried(contract.ranks_per_node) as output,
    ):
        yield Ranks(contract, settings, output, folder=folder)


class _Logs(DefaultLogsSpecs):
    """Sends what ranks say through our pipes; a job of a single rank keeps the launcher's own."""

    def __init__(self, folder: str, output: Output) -> None:
        super().__init__(log_dir=folder)
        self._output = output

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        made = super().reify(envs)
        if envs[0]["WORLD_SIZE"] == "1":
            return made
        out, err = self._output.targets({local: int(env["RANK"]) for local, env in envs.items()})
        return replace(made, stdouts=out, stderrs=err)


def _silence_torch() -> None:
    """Leave the telling to us, unless LOGLEVEL, torch's own switch, asks for more."""
    if "LOGLEVEL" not in os.environ:
        for name in logging.root.manager.loggerDict:
            if name.startswith("torch.distributed.elastic"):
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
