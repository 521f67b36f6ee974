"""A node's connection to the rendezvous server: it joins, waits for rounds, and learns of lost peers.

server.py describes the messages. A thread of its own sends the heartbeats, so that no work of the
caller delays one.

    client = RendezvousClient("job-0.job", 29500, job="job-1", ranks=8, peer_timeout=3)
"""

import contextlib
import logging
import select
import socket
import threading
import time
from dataclasses import dataclass

from trainer.config.exits import Exit, Fault
from trainer.rendezvous.connection import Connection, Message, connect

_RETRY_INTERVAL = 0.5  # seconds

_log = logging.getLogger("launch")


@dataclass(frozen=True)
class Round:
    """Round `number`: the names of its nodes, the ranks of each, and the store's port on the server.

    `rank` is this node's index in both lists.
    """

    number: int
    rank: int
    nodes: list[str]
    ranks: list[int]
    store: int

    @property
    def world_size(self) -> int:
        return sum(self.ranks)

    @property
    def first_rank(self) -> int:
        """The global rank of this node's local rank 0."""
        return sum(self.ranks[: self.rank])


@dataclass(frozen=True)
class MembershipEvent:
    """A reason to stop the ranks here. `lost`: they cannot save, since a rank they need is gone."""

    reason: str
    lost: bool
    since: float  # monotonic
    silent: bool = False  # the peer stopped answering, with its connection still open


class RendezvousClient:
    """This node's membership. The public events are set by the receiving thread."""

    def __init__(
        self, address: str, port: int, *, job: str, ranks: int, peer_timeout: float
    ) -> None:
        self._address, self._port = address, port
        self._job, self._ranks = job, ranks
        self._peer_timeout = peer_timeout
        self._connection: Connection | None = None
        self._changed = threading.Condition()
        self._round: Round | None = None  # the newest one
        self._entered: Round | None = None  # the newest one that `next_round` has returned
        self._joined_nodes = 1
        self._left = False
        self._refusal = ""  # the latest reason
        self.server = ""  # the address at which the server was found
        self.membership_changed: MembershipEvent | None = None  # stop, and go to the next round
        self.peer_lost: MembershipEvent | None = None  # there will be no next round
        self.peer_finished: MembershipEvent | None = None  # this node is expected to end soon, too

    def join(self, number: int, *, deadline: float, own_address: str | None) -> None:
        """Join as node `number`, and try again while refused. Raises Fault(69) at `deadline`.

        A refusal may be temporary: the server may belong to an attempt that is about to end.
        """
        logged = None
        while True:
            problem = self._try_to_join(number, deadline, own_address)
            if problem is None:
                threading.Thread(target=self._receive, name="membership", daemon=True).start()
                return
            place = f"{self._address}:{self._port}"
            if problem != logged:
                _log.info("waiting to join the rendezvous at %s (%s)", place, problem)
                logged = problem
            if time.monotonic() >= deadline:
                raise Fault(Exit.PEER, f"could not join the rendezvous at {place}: {problem}")
            self.pause(_RETRY_INTERVAL)

    def _try_to_join(self, number: int, deadline: float, own_address: str | None) -> str | None:
        """Connect and join once. Return the reason when that did not work."""
        try:
            connected = connect(self._address, self._port)
        except OSError as error:
            return str(error)
        numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        self.server, _ = socket.getnameinfo(connected.getpeername(), numeric)
        own_address = own_address or connected.getsockname()[0]
        self._connection = connection = Connection(connected)
        connection.send(
            "join", number=number, address=own_address, job=self._job, ranks=self._ranks
        )
        # The server answers each node that has joined within a heartbeat.
        deadline = min(deadline, time.monotonic() + self._peer_timeout)
        while time.monotonic() < deadline and not connection.closed:
            self._raise_if_over()
            select.select([connection], [], [], 0.1)
            messages = connection.receive()
            for message in messages:
                if message["kind"] == "finished":
                    raise Fault(Exit.DONE, "the run was finished before this node came")
                if message["kind"] == "refused":
                    self._refusal = str(message.get("reason"))
                    connection.close()
                    return self._refusal
                self._handle(message)  # "start" may come with the first heartbeat
            if messages:
                return None
        connection.close()
        return self._refusal or "the connection ended"

    def _receive(self) -> None:
        """Handle messages and send heartbeats until this node leaves or the server is lost."""
        connection = self._connection
        assert connection is not None  # noqa: S101  # join has set it
        last_turn = time.monotonic()
        while not self._left:
            with contextlib.suppress(OSError, ValueError):  # closed by leave()
                select.select([connection], [], [], self._peer_timeout / 6)
            for message in connection.receive():
                self._handle(message)
            now = time.monotonic()
            if now - last_turn > self._peer_timeout / 2:  # this process was suspended
                connection.last_received = now
            last_turn = now
            silence = now - connection.last_received
            if connection.closed or silence > self._peer_timeout:
                how = "is gone" if connection.closed else f"has been silent for {silence:.1f} s"
                self._lose_server(how, silent=not connection.closed)
                return
            connection.send("heartbeat")

    def _lose_server(self, how: str, *, silent: bool) -> None:
        reason = f"the rendezvous at {self._address}:{self._port} {how}"
        with self._changed:
            if not self._is_over():
                self.peer_lost = MembershipEvent(reason, True, time.monotonic(), silent)
            self._changed.notify_all()

    def _handle(self, message: Message) -> None:
        with self._changed:
            reason, now = str(message.get("reason")), time.monotonic()
            match message["kind"]:
                case "heartbeat":
                    self._joined_nodes = int(message["here"])
                case "start":
                    del message["kind"]
                    self._round = Round(**message)
                    self.membership_changed = None
                case "membership_changed":
                    self.membership_changed = MembershipEvent(reason, message["lost"], now)
                case "peer_lost":
                    self.peer_lost = MembershipEvent(reason, True, now, message["silent"])
                case "peer_finished":
                    self.peer_finished = MembershipEvent(reason, False, now)
            self._changed.notify_all()

    def next_round(self, *, deadline: float, clean: bool, min_nodes: int) -> Round:
        """Report that the ranks here have ended, cleanly or not, and wait for the next round.

        Raises Fault(69) at `deadline` or when there will be no round, and Fault(143) after `leave`.
        """
        with self._changed:
            if self._round is not None and self._round is self._entered:
                self._round = None
                self._send("ready", clean=clean)
            self._changed.wait_for(
                lambda: self._round or self._is_over(), timeout=deadline - time.monotonic()
            )
            self._raise_if_over()
            if self._round is None:
                raise Fault(
                    Exit.PEER,
                    f"only {self._joined_nodes} of {min_nodes} nodes came to the rendezvous at "
                    f"{self._address}:{self._port} in time (TRAINER_RENDEZVOUS_TIMEOUT)",
                )
            self._entered = self._round
            return self._round

    def wait_for_port(self, port: int, *, deadline: float) -> None:
        """Wait until the server's machine accepts connections at `port`, such as a round's store's.

        torch's own client would wait for its whole time-out after the server is lost. Raises Fault(69)
        when it is, or at `deadline`, and Fault(143) after `leave`.
        """
        while True:
            try:
                connect(self.server, port).close()
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise Fault(
                        Exit.PEER,
                        f"no answer from the rendezvous' store at {self.server}:{port}: "
                        f"{error.strerror or error}; nodes must reach each other at every port",
                    ) from None
            else:
                return
            self.pause(_RETRY_INTERVAL)

    def pause(self, seconds: float) -> None:
        """Wait. Raises Fault(143) after `leave`, and Fault(69) when there will be no round."""
        with self._changed:
            self._changed.wait_for(self._is_over, timeout=seconds)
            self._raise_if_over()

    def _is_over(self) -> bool:
        """Return whether this node takes part in no further round."""
        return bool(self._left or self.peer_lost or self.peer_finished)

    def _raise_if_over(self) -> None:
        if self._left:
            raise Fault(Exit.STOPPED, "stopped before any rank was started")
        if event := self.peer_lost or self.peer_finished:
            raise Fault(Exit.PEER, event.reason)

    def leave(self, ending: Exit) -> None:
        """Disconnect: in order when the ranks have finished or were stopped, else as a lost node."""
        with self._changed:
            if not self._left and ending in (Exit.DONE, Exit.STOPPED):
                self._send("leave", done=ending == Exit.DONE)
            self._left = True
            self._changed.notify_all()
        if self._connection is not None:
            self._connection.close()

    def _send(self, kind: str, **fields: object) -> None:
        if self._connection is not None:
            self._connection.send(kind, **fields)
