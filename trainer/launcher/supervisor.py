"""Runs this node's ranks to their end: round after round, with one exit code for all of them.

Everything here runs in the main thread. A signal handler only notes a signal; the next turn acts on it.

    supervisor = Supervisor(contract, options, meeting, program=program)
    code = supervisor.run()
"""

import contextlib
import functools
import logging
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

from trainer import health
from trainer.config.contract import Contract
from trainer.config.exits import PROFILE_SIGNAL, Action, Exit, Fault, codes_for
from trainer.launcher.failures import Failure, explain, report_failures
from trainer.launcher.output.attempt_log import AttemptLog
from trainer.launcher.output.rank_output import RankOutput
from trainer.launcher.peers import overdue
from trainer.launcher.program import code_sync
from trainer.launcher.program.options import Options
from trainer.launcher.ranks import NextRound, Process, Program, Ranks
from trainer.launcher.stall import Stall
from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.events import MembershipEvent, Round
from trainer.rendezvous.interface import choose_interface
from trainer.rendezvous.meeting import Meeting
from trainer.watch import peer_losses
from trainer.watch.cgroup import oom_kills

_TURN = 0.03  # seconds
_ABORT_GRACE = 5.0  # seconds to write the stacks
_FAILING = 0.3  # seconds within which failures of a program's ranks count as simultaneous
_RAISING = 30.0  # seconds that a rank may take from its traceback to its end
_LAST_NODE, _LAST_TURN = 30.0, 0.003  # seconds; our trainer's nodes end together

# Exit codes after which a restart of the ranks in place cannot help.
_FINAL = {*codes_for(Action.FAIL), int(Exit.STOPPED), -signal.SIGTERM}

# Exit codes of ranks that stopped or lost a peer, and could continue with other nodes.
_RESUMABLE = {int(Exit.STOPPED), int(Exit.PEER), -signal.SIGTERM}

_log = logging.getLogger("launch")


class Supervisor:
    """Supervises this node; make `note_signal` the signal handler before `run`."""

    def __init__(
        self, contract: Contract, options: Options, meeting: Meeting, *, program: Program
    ) -> None:
        self._contract, self._options, self._program = contract, options, program
        self._meeting = meeting
        self._client = RendezvousClient(
            contract,
            meeting.open,
            secret=meeting.secret,
            peer_timeout=options.peer_timeout,
            has_store=program.open_store is not None,
        )
        self._health_folder = folder = Path(options.health) if options.health else None
        health.forget(folder)
        self._renew_health = health.sign(folder, health.LAUNCHER, limit=options.health_limit)
        self._oom_kills = oom_kills()
        self._attempts = AttemptLog(Path(options.run_folder), contract)
        self._signals: list[int] = []
        self._kill_at = float("inf")
        self._late = ""  # why ranks that still ran were killed
        self._ranks = Ranks()
        self._store: Process | None = None

    def note_signal(self, number: int, _: FrameType | None) -> None:
        """Note a signal. The first stops the ranks, a second Ctrl-C kills them.

        A second SIGTERM kills them, too, unless they are our trainer's, which are sure to save and end.
        Only our trainer gets the signal that asks for a profile.
        """
        if number != PROFILE_SIGNAL:
            self._signals.append(number)
        elif self._program.is_trainer:
            self._ranks.send(PROFILE_SIGNAL)

    def run(self) -> Exit:
        """Run the ranks to their end and return one exit code for all of them. Raises Fault."""
        ending, reason, ranks = Exit.CODE, "", self._contract.ranks_per_node
        output = RankOutput(ranks, is_read=self._options.stall > 0, events=self._program.events)
        with (
            contextlib.closing(output) as self._output,
            tempfile.TemporaryDirectory(prefix="muster-") as folder,
        ):
            try:
                ending = self._run_rounds(Path(folder))
                if ending == Exit.PEER:
                    raise Fault(Exit.PEER, "the ranks lost a peer")  # noqa: TRY301  # counted below
            except Fault as fault:
                counted = self._counted(fault)
                ending, reason = counted.code, str(counted)
                raise counted from None
            finally:
                self._ranks.kill()  # loader workers that a killed rank has left
                self._output.drain()  # so that the launcher's last lines come last
                if self._program.events:
                    self._program.events.end(ending, reason or self._attempts.reason)
                self._attempts.write("ended", exit=int(ending), reason=reason)
                self._client.leave(ending)
                self._wait_for_last_node(ending)
        return ending

    def _run_rounds(self, folder: Path) -> Exit:
        """Meet the other nodes and run the ranks, until they have ended for good."""
        following, restarts = NextRound(), 0
        timeout, most_restarts = self._options.rendezvous_timeout, self._contract.max_restarts
        self._client.start(deadline=time.monotonic() + timeout)
        while True:
            code_sync.take(os.environ)
            self._attempts.write("waiting")
            place = self._client.next_round(
                clean=following.clean,
                open_port=self._open_port,
                deadline=time.monotonic() + timeout,
                turn=self._raise_if_stopped,
            )
            self._attempts.write_start(place, restarts)
            self._ranks = self._start(place, restarts, folder)
            outcome = self._watch(can_restart=restarts < most_restarts)
            self._ranks.kill()  # loader workers
            self._output.drain()
            if isinstance(outcome, Exit):
                return outcome
            following = outcome
            restarts += following.counted
            if following.counted:
                _log.info("restarting the ranks, %d of %d times", restarts, most_restarts)

    def _open_port(self) -> int:
        """Return the port of the next round's store; 0 if it is on another node."""
        if self._meeting.server is None:
            return 0
        if self._store is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._store.pid, signal.SIGKILL)
        world_size = self._contract.max_nodes * self._contract.ranks_per_node
        if self._program.open_store is None or world_size == 1:
            return self._meeting.reserve_port()
        self._store, port = self._program.open_store()
        return port

    def _start(self, place: Round, restarts: int, folder: Path) -> Ranks:
        contract, program = self._contract, self._program
        if program.is_trainer:
            for local in range(contract.ranks_per_node):  # a rank may hang before it writes its own
                health.sign(
                    self._health_folder, health.rank(local), limit=self._options.health_limit
                )
        server = self._meeting.server
        return Ranks.start(
            program.start,
            replace(place, address=server.address) if server else place,
            ranks=contract.ranks_per_node,
            variables={
                **program.variables(place, folder),
                **self._interface,
                "TORCHELASTIC_RUN_ID": contract.rendezvous_id,
                "TORCHELASTIC_RESTART_COUNT": str(restarts),
                "TORCHELASTIC_MAX_RESTARTS": str(contract.max_restarts),
                "TORCHELASTIC_USE_AGENT_STORE": str(program.open_store is not None),
            }
            # So that our ranks let us report their errors. A program may itself start our trainer.
            | ({"MUSTER_LAUNCHER": str(os.getpid())} if program.is_trainer else {}),
            output=self._output,
            folder=folder,
            exit_codes=self._options.exit_codes,
        )

    @functools.cached_property
    def _interface(self) -> dict[str, str]:
        """The variables of the network interface; by now the master's name resolves."""
        variables, reason = choose_interface(self._contract, os.environ)
        if variables:
            text = ", ".join(f"{name}={value}" for name, value in variables.items())
            _log.info("%s: %s", text, reason)
        return variables

    def _watch(self, *, can_restart: bool) -> Exit | NextRound:
        """Watch the ranks until they have ended, or must end; return what follows. Raises Fault."""
        client, stall = self._client, Stall(self._options.stall)
        grace = self._contract.shutdown_timeout
        while True:
            failed = any(self._ranks.poll().values())
            if code_sync.is_due(os.environ, failed=failed) and not self._signals:
                self._ranks.end(grace=grace, turn=self._turn)
                return NextRound()
            if failed:
                return self._end_after_failure(can_restart=can_restart)
            if self._ranks.have_succeeded:
                return self._end_after_success()
            if (event := client.membership_changed) and not self._signals:
                return self._end_for_next_round(event)
            reported, together = self._ranks.has_reported_failure, self._program.is_trainer
            event = overdue(client, grace, has_reported_failure=reported, end_together=together)
            if event:
                self._ranks.end(grace=0, turn=self._turn)
                if self._ranks.has_reported_failure:
                    return self._report(self._ranks.failures(self._ranks.poll()))
                raise Fault(Exit.PEER, f"lost a peer: {event.reason}")
            if stall.found(self._ranks.processes, self._output.bytes):
                # faulthandler writes the stacks, if the program has enabled it.
                self._ranks.end(grace=_ABORT_GRACE, turn=self._turn, number=signal.SIGABRT)
                raise Fault(
                    Exit.PEER,
                    f"the ranks hang: no output and no processor time for {self._options.stall:.0f} s "
                    "(run.stall, MUSTER_STALL)",
                )
            self._turn()

    def _end_after_success(self) -> Exit | NextRound:
        """Decide whether the ranks are done: many programs end with 0 after SIGTERM to any node, too."""
        if self._program.is_trainer or not (self._signals or self._client.peer_stops):
            return Exit.DONE
        return NextRound() if self._contract.elastic and not self._signals else Exit.STOPPED

    def _end_after_failure(self, *, can_restart: bool) -> Exit | NextRound:
        """End the other ranks, one of which may be the cause, and decide whether all start again."""
        noticed = time.time()
        # A rank that loses its peer may end before the peer, though it is not the cause.
        others_end = noticed + (0 if self._program.is_trainer else _FAILING)
        while self._ranks.running and time.time() < others_end:
            self._turn()
        first = dict(self._ranks.poll())
        self._ranks.end(grace=self._contract.shutdown_timeout, turn=self._turn)
        self._output.drain()
        # The rank that raised an error may take longer to end than those that lost it.
        reports = self._program.is_trainer or self._signals  # our ranks report why they end
        raised = {} if reports else self._output.raised(noticed - _RAISING, noticed)
        failures = self._ranks.own_failures(first, raised)
        seen = {failure.code for failure in failures.values()}
        if self._contract.elastic and seen <= _RESUMABLE and not self._signals:
            clean = int(Exit.PEER) not in seen
            if not clean:
                self._count_loss("the ranks lost a peer")
            return NextRound(clean=clean)
        code = self._report(failures)
        if can_restart and not self._signals and not seen & _FINAL:
            return NextRound(clean=False, counted=True)
        return code

    def _end_for_next_round(self, event: MembershipEvent) -> NextRound:
        """End the ranks because the nodes have changed. Raises Fault(70) after too many losses."""
        _log.info("%s; starting the next round", event.reason)
        self._ranks.end(grace=0 if event.lost else self._contract.shutdown_timeout, turn=self._turn)
        if event.lost:
            self._count_loss(event.reason)
        return NextRound()

    def _report(self, failures: Mapping[int, Failure]) -> Exit:
        self._output.drain()
        first_rank = self._ranks.first_rank
        explained = explain(
            failures,
            self._oom_kills,
            late=self._late,
            last_lines=lambda rank: self._output.last_lines(rank - first_rank),
        )
        self._attempts.write_failures(explained)
        return report_failures(explained)

    def _count_loss(self, reason: str) -> None:
        """Count a lost peer; the job continues. Raises Fault(70) after too many."""
        fault = self._counted(Fault(Exit.PEER, reason))
        if fault.code != Exit.PEER:
            raise fault

    def _counted(self, fault: Fault) -> Fault:
        """Count a lost peer, only on the server's node; after too many it is a failure, 70."""
        if fault.code != Exit.PEER or self._signals or self._meeting.server is None:
            return fault
        folder, allowed = Path(self._options.run_folder), self._options.peer_losses
        return peer_losses.count(folder, allowed=allowed, reason=str(fault))

    def _turn(self) -> None:
        """Show that this process is alive, act on signals, and wait a moment."""
        self._renew_health()
        grace = self._contract.shutdown_timeout
        if self._signals and self._kill_at == float("inf"):
            self._kill_at = time.monotonic() + grace
            self._client.say_that_it_stops()
            self._ranks.send(signal.SIGTERM)
        kills = {signal.SIGINT} if self._program.is_trainer else {signal.SIGINT, signal.SIGTERM}
        if kills.intersection(self._signals[1:]):
            self._late = "; the launcher got a second signal"
        elif time.monotonic() >= self._kill_at:
            self._late = f"; it still ran {grace} s after SIGTERM (PET_SHUTDOWN_TIMEOUT)"
        if self._late:
            self._ranks.kill()
        time.sleep(_TURN)

    def _raise_if_stopped(self) -> None:
        """Do a turn while no rank runs. Raises Fault(143)."""
        self._renew_health()
        if self._signals:
            name = signal.Signals(self._signals[0]).name
            raise Fault(Exit.STOPPED, f"{name} before any rank was started")

    def _wait_for_last_node(self, ending: Exit) -> None:
        """End the server after the other nodes have finished, too; another program's may take long."""
        if (server := self._meeting.server) is not None:
            seconds = _LAST_NODE if self._program.is_trainer else float("inf")
            end = time.monotonic() + (seconds if ending == Exit.DONE else 0)
            while server.present and not self._signals and time.monotonic() < end:
                self._renew_health()
                time.sleep(_LAST_TURN)
            server.close()
