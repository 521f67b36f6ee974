"""The rendezvous server on node 0: one thread, one connection for each node.

It authenticates each connection, checks every message, sends heartbeats and finds silent nodes.
membership.py makes the decisions. RENDEZVOUS.md describes the protocol.

    server = RendezvousServer(listener, rules, job="job-1", secret="...")
    server.close()
"""

import hmac
import logging
import os
import resource
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainer.config.exits import Exit, Fault
from trainer.rendezvous.connection import Connection
from trainer.rendezvous.membership import Membership, Node, Rules, State
from trainer.rendezvous.messages import (
    FROM_NODE,
    HEARTBEATS_PER_SILENCE,
    Message,
    decode,
    encode,
    proof,
)

BACKLOG = 4096  # connections that wait to be accepted; the kernel may allow fewer

_HEARTBEAT = encode("heartbeat").rstrip()
_SECONDS_PER_HEARTBEAT = 150e-6  # of a core, with the answer: several times what was measured
_ACCEPTED_AT_ONCE = 100  # then the connected nodes have their turn
_ACCEPTED_WHEN_FULL = 10  # per heartbeat, while no node can join: these will be refused
_SPARE_FILES = 512  # descriptors for everything except the nodes

_log = logging.getLogger("launch")


def silence_limit(rules: Rules) -> float:
    """Return the seconds of silence after which a peer is lost.

    With thousands of nodes it is longer than set, because heartbeats would need a whole core.
    """
    longest = rules.max_nodes * _SECONDS_PER_HEARTBEAT * HEARTBEATS_PER_SILENCE
    return max(rules.peer_timeout, longest)


@dataclass(eq=False)
class _Peer:
    """A connection. It is a stranger's until `join` is accepted; then `node` is set."""

    connection: Connection
    own: bool = False
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    since: float = field(default_factory=time.monotonic)
    node: Node | None = None


class RendezvousServer:
    """Serves in its own thread. `own_socket` connects this node; no stranger can take its place.

    Raises Fault(71) if this process may not open enough files.
    """

    def __init__(self, listener: socket.socket, rules: Rules, *, job: str, secret: str) -> None:
        self._rules = rules
        self._key = f"{job}\n{secret}"
        self._silence = silence_limit(rules)
        self._interval = self._silence / HEARTBEATS_PER_SILENCE
        self._max_strangers = _raise_file_limit(rules.max_nodes)
        self._listener = listener
        self._membership = Membership(rules, self._send)
        self._peers: dict[Node, _Peer] = {}
        self._strangers: dict[_Peer, None] = {}  # the oldest first
        self._closed: list[_Peer] = []  # found while sending
        self._selector = selectors.DefaultSelector()
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._accepting = False  # whether a new connection is accepted at once
        self.address = "127.0.0.1"  # of this node, as the last node that joined has reached it
        self.own_socket, own = socket.socketpair()
        self._welcome(own, own=True)
        self._closing, self._close = os.pipe()  # readable when closed
        self._selector.register(self._closing, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    @property
    def present(self) -> int:
        """How many nodes are connected."""
        return len(self._peers)

    def close(self) -> None:
        """Stop serving; nodes that are still connected lose their peer."""
        os.close(self._close)
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        try:
            last_turn = next_heartbeat = time.monotonic()
            timeout = 0.0
            while True:
                self._listen(at_once=not self._membership.full)
                for key, events in self._selector.select(timeout):
                    if key.fd == self._closing:
                        return
                    if key.data is None:
                        self._accept(_ACCEPTED_AT_ONCE)
                    else:
                        self._turn(key.data, events)
                now = time.monotonic()
                if now - last_turn > self._silence / 2:  # this process was suspended
                    for peer in [*self._peers.values(), *self._strangers]:
                        peer.connection.last_received = peer.since = now
                last_turn = now
                if now >= next_heartbeat:
                    next_heartbeat = now + self._interval
                    self._drop_silent(now)
                    self._send(self._peers, "heartbeat", here=len(self._peers))
                    self._accept(_ACCEPTED_WHEN_FULL)
                self._drop_strangers(now)
                wait = self._membership.start_if_ready(now)
                while self._closed:
                    self._drop(self._closed.pop())
                timeout = min(self._interval / 2, wait)
        finally:
            for peer in [*self._peers.values(), *self._strangers]:
                peer.connection.close()
            self._listener.close()
            self._selector.close()
            os.close(self._closing)

    def _listen(self, *, at_once: bool) -> None:
        """Accept connections at once, or only with each heartbeat, because strangers cost time."""
        if at_once and not self._accepting:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._accepting and not at_once:
            self._selector.unregister(self._listener)
        self._accepting = at_once

    def _accept(self, count: int) -> None:
        for _ in range(count):
            try:
                connected, _ = self._listener.accept()
            except OSError:  # no more connections, or no free descriptor until strangers end
                return
            self._welcome(connected, own=False)

    def _welcome(self, connected: socket.socket, *, own: bool) -> None:
        peer = _Peer(Connection(connected), own)
        self._strangers[peer] = None
        self._selector.register(connected, selectors.EVENT_READ, peer)
        self._write(peer, encode("challenge", nonce=peer.nonce))

    def _turn(self, peer: _Peer, events: int) -> None:
        """Handle the input of one connection; an error there ends only that connection."""
        connection = peer.connection
        try:
            if events & selectors.EVENT_WRITE:
                self._write(peer, b"")
            for line in connection.receive():
                if line == _HEARTBEAT and peer.node is not None:  # most lines
                    continue
                message = decode(line, FROM_NODE)
                if message is None or not self._handle(peer, message):
                    connection.closed = True
                    break
        except Exception:  # noqa: BLE001  # the other connections continue
            _log.exception("the rendezvous ends a connection")
            connection.closed = True
        if connection.closed:
            self._drop(peer)

    def _handle(self, peer: _Peer, message: Message) -> bool:
        """Act on a message; return False if the connection must end."""
        node = peer.node
        if node is None:
            return message["kind"] == "join" and self._join(peer, message)
        match message["kind"]:
            case "ready":
                self._membership.ready(node, clean=message["clean"], port=message["port"])
            case "stopping":
                self._send([other for other in self._peers if other is not node], "peer_stopping")
            case "leave":
                del self._peers[node]
                peer.node = None
                self._membership.leave(node, done=message["done"])
                return False
            case "join":
                return False
        return True

    def _join(self, peer: _Peer, message: Message) -> bool:
        number, ranks, nonce = message["number"], message["ranks"], message["nonce"]
        theirs = proof(self._key, "join", peer.nonce, nonce, number, ranks)
        if not hmac.compare_digest(message["proof"], theirs):
            self._write(peer, encode("refused", reason="another job, attempt, or secret"))
            return False
        ours = proof(self._key, "welcome", peer.nonce, nonce)
        self._write(peer, encode("welcome", proof=ours, silence=self._silence))
        if self._membership.state is State.FINISHED:
            self._write(peer, encode("finished"))
            return False
        node = Node(number, ranks, f"node {number}", own=peer.own)
        if not peer.own:
            self.address, its_address = _addresses(peer.connection.socket)
            # Without PET_NODE_RANK all nodes of an elastic job have the number 0.
            node.name = f"{node.name} ({its_address})" if number else f"the node at {its_address}"
        if refusal := self._membership.join(node, now=time.monotonic()):
            self._write(peer, encode("refused", reason=refusal))
            return False
        peer.node = node
        del self._strangers[peer]
        self._peers[node] = peer
        self._write(peer, encode("heartbeat", here=len(self._peers)))
        return True

    def _drop_silent(self, now: float) -> None:
        for node, peer in [*self._peers.items()]:
            silence = now - peer.connection.last_received
            if silence > self._silence:
                self._drop(peer, f"{node.name} has been silent for {silence:.1f} s", silent=True)

    def _drop_strangers(self, now: float) -> None:
        """End the oldest connections that have not joined in time, or while there are too many."""
        while self._strangers:
            oldest = next(iter(self._strangers))
            if now - oldest.since <= self._silence and len(self._strangers) <= self._max_strangers:
                return
            self._drop(oldest)

    def _drop(self, peer: _Peer, reason: str = "", *, silent: bool = False) -> None:
        self._strangers.pop(peer, None)
        if peer.connection.socket.fileno() >= 0:
            self._selector.unregister(peer.connection.socket)
            peer.connection.close()
        node, peer.node = peer.node, None
        if node is not None:
            del self._peers[node]
            self._membership.lose(node, reason or f"{node.name} is gone", silent=silent)

    def _send(self, nodes: Iterable[Node], kind: str, /, **fields: object) -> None:
        lines = encode(kind, **fields)
        for node in nodes:
            self._write(self._peers[node], lines)

    def _write(self, peer: _Peer, lines: bytes) -> None:
        connection, waited = peer.connection, bool(peer.connection.unsent)
        connection.send(lines)
        if connection.closed:
            self._closed.append(peer)
        elif bool(connection.unsent) != waited:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
            self._selector.modify(connection.socket, events, peer)


def _addresses(connected: socket.socket) -> tuple[str, str]:
    """Return our address and the peer's; an IPv4-mapped address as IPv4."""
    names = connected.getsockname(), connected.getpeername()
    ours, theirs = (str(name[0]).removeprefix("::ffff:") for name in names)
    return ours, theirs


def _raise_file_limit(nodes: int) -> int:
    """Allow this process a descriptor for each node; return how many strangers may connect."""
    needed = nodes + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if most < needed:
        raise Fault(
            Exit.MACHINE,
            f"this process may open {hard} files, and {nodes} nodes need {needed}; raise the hard "
            "limit (ulimit -Hn), or run fewer nodes",
        )
    strangers = min(max(_SPARE_FILES // 2, 2 * nodes), most - needed + _SPARE_FILES // 2)
    wanted = min(needed + strangers, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return strangers
