"""A node's membership: a thread joins, sends heartbeats, and learns of rounds and of lost peers.

Only this thread waits for the network, so the main thread handles a signal at once.

    client = RendezvousClient(contract, meeting.open, secret="", peer_timeout=3, has_store=True)
    client.start(deadline=time.monotonic() + 600)
    found = client.next_round(clean=True, open_port=lambda: 0, deadline=..., turn=lambda: None)
"""

import contextlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

from trainer.config.contract import Contract
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.connection import Connection, connect
from trainer.rendezvous.events import MembershipEvent, Round
from trainer.rendezvous.messages import (
    FROM_SERVER,
    HEARTBEATS_PER_SILENCE,
    Message,
    decode,
    encode,
    proof,
)

_RETRY_INTERVAL = 0.5  # seconds
_TURN = 0.1  # seconds after which the main thread sees that it must stop
_STORE_TIMEOUT = 30.0  # seconds; the store listens before the round starts

_log = logging.getLogger("launch")


class RendezvousClient:
    """This node's membership. The thread sets the public attributes."""

    def __init__(
        self,
        contract: Contract,
        open_connection: Callable[[], socket.socket],
        *,
        secret: str,
        peer_timeout: float,
        has_store: bool,
    ) -> None:
        self._contract = contract
        self._open_connection = open_connection
        self._key = f"{contract.rendezvous_id}\n{secret}"
        self._silence = peer_timeout  # seconds after which the server is lost
        self._has_store = has_store  # a store that listens before a round starts
        self._connection: Connection | None = None
        self._changed = threading.Condition()
        self._round: Round | None = None  # the newest one
        self._address = ""  # the server's
        self._here = 0  # connected nodes
        self._problem = "no answer"  # why joining failed
        self._left = False
        self.joined = False
        self.failure: Fault | None = None  # why this node will not join
        # A node was asked to end in this round, and its ranks may tell ours.
        self.peer_stops = False
        self.membership_changed: MembershipEvent | None = None  # stop, and go to the next round
        self.peer_lost: MembershipEvent | None = None  # there will be no next round
        self.peer_finished: MembershipEvent | None = None  # this node is expected to end soon, too

    def start(self, *, deadline: float) -> None:
        """Start to join; give up at `deadline`."""
        thread = threading.Thread(
            target=self._run, args=(deadline,), name="membership", daemon=True
        )
        thread.start()

    def next_round(
        self,
        *,
        clean: bool,
        open_port: Callable[[], int],
        deadline: float,
        turn: Callable[[], None],
    ) -> Round:
        """Report that ranks can start here, and wait for a round. `clean`: the last ranks could save.

        `open_port` returns the port of rank 0 or its store, if that is on this node; `turn` is called
        ten times a second. Raises Fault(69) at `deadline` or if there will be no round, Fault(0) if the
        run is over, and what `turn` raises.
        """
        reported = False
        while True:
            if self.joined and not reported:
                port = open_port()
                with self._changed:
                    self._round, reported = None, True
                    self._send("ready", clean=clean, port=port)
            with self._changed:
                if not (self._round or self._is_over() or (self.joined and not reported)):
                    self._changed.wait(_TURN)
                found = self._round
            self._raise_if_over(turn)
            if found is not None:
                if self._listens(found, deadline, turn):
                    return found
                reported = False
            elif time.monotonic() >= deadline:
                raise Fault(Exit.PEER, self._who_is_missing())

    def _listens(self, found: Round, deadline: float, turn: Callable[[], None]) -> bool:
        """Wait until the round's store accepts connections; return False if the round is over.

        A process group would wait for its whole time-out, even after the server is lost.
        """
        deadline = min(deadline, time.monotonic() + _STORE_TIMEOUT)
        while self._has_store and found.world_size > 1 and found.node > 0:
            if self.membership_changed:
                return False
            try:
                connect(found.address, found.port).close()
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise Fault(
                        Exit.PEER,
                        f"no answer from the round's store at {found.address}:{found.port}: "
                        f"{error.strerror or error}; nodes must reach each other at every port",
                    ) from None
            with self._changed:
                self._changed.wait_for(self._is_over, timeout=_TURN)
            self._raise_if_over(turn)
        return True

    def say_that_it_stops(self) -> None:
        """Tell the other nodes that the ranks here are about to get SIGTERM."""
        with self._changed:
            self._send("stopping")

    def leave(self, ending: Exit) -> None:
        """Disconnect: with `leave` if the ranks have finished or were stopped, else as a lost node."""
        with self._changed:
            if self.joined and ending in (Exit.DONE, Exit.STOPPED):
                self._send("leave", done=ending == Exit.DONE)
            self._left = True
            self._changed.notify_all()
            if self._connection is not None:
                self._connection.close()

    def _run(self, deadline: float) -> None:
        try:
            self._join(deadline)
            self._receive()
        except Exception as error:  # noqa: BLE001  # raised in the thread that waits
            fault = Fault(Exit.CODE, f"the rendezvous failed: {type(error).__name__}: {error}")
            with self._changed:
                self.failure = error if isinstance(error, Fault) else fault
                if self.joined:  # the ranks here may run
                    self.peer_lost = MembershipEvent(str(self.failure), True, time.monotonic())
                self._changed.notify_all()

    def _join(self, deadline: float) -> None:
        """Join, and retry while refused: the server may be that of an attempt that is about to end."""
        endpoint, logged = self._contract.endpoint, set[str]()
        while not self._left:
            try:
                problem = self._try_to_join()
            except OSError as error:
                problem = str(error)
            if not problem or self._left:
                return
            self._problem = problem
            if problem not in logged:  # two may take turns
                logged.add(problem)
                _log.info(
                    "waiting for the rendezvous server on node 0 at %s (%s)", endpoint, problem
                )
            if time.monotonic() + _RETRY_INTERVAL >= deadline:
                raise Fault(Exit.PEER, self._who_is_missing())
            with self._changed:
                self._changed.wait_for(lambda: self._left, timeout=_RETRY_INTERVAL)

    def _try_to_join(self) -> str:
        """Connect and try to join once; return why that failed, or ""."""
        connected = self._open_connection()
        self._connection = connection = Connection(connected)
        self._address = _server_address(connected)
        end = time.monotonic() + self._silence  # the server answers at once
        number, ranks = self._contract.node_rank, self._contract.ranks_per_node
        nonce = secrets.token_hex(16)
        challenge, proven, problem = "", False, ""
        while time.monotonic() < end and not connection.closed and not self._left:
            for message in _messages(connection, _TURN):
                match message["kind"]:
                    case "challenge" if not challenge:
                        challenge = message["nonce"]
                        ours = proof(self._key, "join", challenge, nonce, number, ranks)
                        fields = {"number": number, "ranks": ranks, "nonce": nonce, "proof": ours}
                        connection.send(encode("join", **fields))
                    case "welcome":
                        theirs = proof(self._key, "welcome", challenge, nonce)
                        proven = hmac.compare_digest(message["proof"], theirs)
                        self._silence = message["silence"]
                    case "refused":
                        problem = message["reason"]
                    case "finished" if proven:
                        raise Fault(Exit.DONE, "the run finished before this node joined")
                    case _ if proven:  # the first heartbeat: this node has joined
                        with self._changed:
                            self.joined = True
                            self._handle(message)
                    case _:
                        connection.closed = True
            if self.joined:
                return ""
        connection.close()
        return problem or "no answer"

    def _receive(self) -> None:
        """Handle messages and send heartbeats until this node leaves or the server is lost."""
        connection = self._connection
        assert connection is not None  # noqa: S101  # _join has set it
        limit = self._silence
        last_turn = next_heartbeat = time.monotonic()
        while not self._left:
            for message in _messages(connection, max(0.0, next_heartbeat - time.monotonic())):
                with self._changed:
                    self._handle(message)
            now = time.monotonic()
            if now - last_turn > limit / 2:  # this process was suspended
                connection.last_received = now
            last_turn = now
            silence = now - connection.last_received
            if connection.closed or silence > limit:
                how = "is gone" if connection.closed else f"has been silent for {silence:.1f} s"
                reason = f"node 0 at {self._contract.endpoint} {how}"
                with self._changed:
                    finished = self.peer_finished
                    if not (self._left or self.peer_lost or (finished and finished.over)):
                        is_silent = not connection.closed
                        self.peer_lost = MembershipEvent(reason, True, now, is_silent)
                    self._changed.notify_all()
                return
            if now >= next_heartbeat:
                next_heartbeat = now + limit / HEARTBEATS_PER_SILENCE
                with self._changed:
                    self._send("heartbeat")

    def _handle(self, message: Message) -> None:
        """Store what the server's message says. The caller holds the lock."""
        reason, now = message.get("reason", ""), time.monotonic()
        match message.pop("kind"):
            case "heartbeat":
                self._here = message["here"]
            case "start":
                number = message.pop("round")
                self._round = Round(number=number, address=self._address, **message)
                self.membership_changed, self.peer_stops = None, False
            case "membership_changed":
                self.membership_changed = MembershipEvent(reason, message["lost"], now)
            case "peer_stopping":
                self.peer_stops = True
            case "peer_lost":
                self.peer_lost = MembershipEvent(reason, True, now, message["silent"])
            case "peer_finished":
                before, over = self.peer_finished, message["over"]
                stopped = message["stopped"] or bool(before and before.stopped)
                self.peer_finished = MembershipEvent(reason, False, now, stopped=stopped, over=over)
        self._changed.notify_all()

    def _is_over(self) -> bool:
        """Return whether this node takes part in no further round."""
        return bool(self._left or self.failure or self.peer_lost or self.peer_finished)

    def _raise_if_over(self, turn: Callable[[], None]) -> None:
        turn()
        if self.failure:
            raise self.failure
        if event := self.peer_lost or self.peer_finished:
            raise Fault(Exit.PEER, event.reason)

    def _who_is_missing(self) -> str:
        endpoint, limit = self._contract.endpoint, "in time (TRAINER_RENDEZVOUS_TIMEOUT)"
        if not self.joined:
            return f"could not join the master, node 0, at {endpoint} {limit}: {self._problem}"
        wanted = self._contract.min_nodes
        return f"only {self._here} of {wanted} nodes joined the rendezvous at {endpoint} {limit}"

    def _send(self, kind: str, /, **fields: object) -> None:
        if self._connection is not None:
            self._connection.send(encode(kind, **fields))


def _messages(connection: Connection, seconds: float) -> Iterator[Message]:
    """Wait, and yield the server's messages; a line that is no message ends the connection."""
    with contextlib.suppress(OSError, ValueError):  # leave() has closed it
        connection.wait(seconds)
    for line in connection.receive():
        message = decode(line, FROM_SERVER)
        if message is None:
            connection.closed = True
            return
        yield message


def _server_address(connected: socket.socket) -> str:
    """Return the address of the server, not its name, which may later resolve to another address."""
    if connected.family == socket.AF_UNIX:
        return "127.0.0.1"  # in this process
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    with contextlib.suppress(OSError):
        return socket.getnameinfo(connected.getpeername(), numeric)[0].removeprefix("::ffff:")
    return ""  # gone already
