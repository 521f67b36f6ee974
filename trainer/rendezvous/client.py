"""An agent's end of the roll (`coordinator.py`): joining it, and hearing what becomes of it."""

import contextlib
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass

from trainer.config.exits import Exit, Fault
from trainer.rendezvous.connect import connect
from trainer.rendezvous.wire import Line, Message


@dataclass(frozen=True)
class Round:
    """Who trains together: `nodes`, how many `ranks` each has, and the store's port at the keeper.

    `rank` is this node's place among them.
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
        """Return the global rank of this node's first one."""
        return sum(self.ranks[: self.rank])


@dataclass(frozen=True)
class News:
    """What the ranks are to be stopped for. `lost`: one they talk to is gone, so they cannot save."""

    reason: str
    lost: bool
    since: float
    silent: bool = False


class Member:
    """This node's place on the roll. A thread keeps it, so that no caller's work delays a beat."""

    def __init__(
        self, address: str, port: int, *, job: str, ranks: int, peer_timeout: float
    ) -> None:
        self._place = (address, port)
        self._hello = {"job": job, "ranks": ranks}
        self._peer_timeout = peer_timeout
        self._line: Line | None = None
        self._told = threading.Condition()
        self._round: Round | None = None
        self._here = 1
        self._refused: str | None = None
        self.keeper = ""  # the address at which the roll was found
        self._left = False
        self._entered: Round | None = None  # the round that this node was last told to start
        self.change: News | None = None  # come to the next round
        self.broken: News | None = None  # there will be no next round
        self.over: News | None = None  # another node is done; this one is to end soon too

    def join(self, number: int, *, deadline: float, own_address: str | None) -> None:
        """Connect and say who this is, again and again while refused. Raises Fault(69) at `deadline`.

        A refusal may pass: what refuses can be an attempt that is about to end.
        """
        told = None
        while True:
            try:
                connection = connect(*self._place)
            except OSError as error:
                problem = str(error)
            else:
                peer = connection.getpeername()
                self.keeper, _ = socket.getnameinfo(
                    peer, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
                )
                self._line = Line(connection)
                me = own_address or connection.getsockname()[0]
                self._line.send("hello", number=number, address=me, **self._hello)
                if self._admitted(deadline):
                    threading.Thread(target=self._listen, name="member", daemon=True).start()
                    return
                self._line.close()
                problem = self._refused or "the connection ended"
            if problem != told:
                host, port = self._place
                line = f"launch: waiting for a place at the rendezvous {host}:{port} ({problem})"
                print(line, file=sys.stderr, flush=True)
                told = problem
            if time.monotonic() >= deadline:
                host, port = self._place
                raise Fault(Exit.PEER, f"no place at the rendezvous {host}:{port}: {problem}")
            self.pause(0.5)

    def pause(self, seconds: float) -> None:
        """Wait. Raises Fault(143) after `leave`, and Fault(69) when there will be no round."""
        with self._told:
            self._told.wait_for(self._is_in_vain, timeout=seconds)
            self._check()

    def _is_in_vain(self) -> bool:
        """Return whether this node waits for a round that it will not see."""
        return bool(self._left or self.broken or self.over)

    def _check(self) -> None:
        """Raise what ends a wait that is in vain."""
        if self._left:
            raise Fault(Exit.STOPPED, "stopped before any rank was started")
        if news := self.broken or self.over:
            raise Fault(Exit.PEER, news.reason)

    def _admitted(self, deadline: float) -> bool:
        """Wait for the first answer, which every admitted node gets within a beat.

        What has come with it counts as well: it may be the start of the round.
        """
        line = self._line
        assert line is not None  # noqa: S101  # join has just set it
        until = min(deadline, time.monotonic() + self._peer_timeout)
        while time.monotonic() < until and not line.closed:
            self._check()
            select.select([line], [], [], 0.1)
            answers = line.receive()
            for message in answers:
                if message["kind"] == "refused":
                    self._refused = str(message.get("reason"))
                    return False
                if message["kind"] == "finished":
                    raise Fault(Exit.DONE, "the run was finished before this node came")
                self._take(message)
            if answers:
                return True
        return False

    def _listen(self) -> None:
        line = self._line
        assert line is not None  # noqa: S101
        woke = time.monotonic()
        beat = self._peer_timeout / 6
        while not self._left:
            with contextlib.suppress(OSError, ValueError):  # closed by leave()
                select.select([line], [], [], beat)
            for message in line.receive():
                self._take(message)
            now = time.monotonic()
            if now - woke > self._peer_timeout / 2:
                line.heard = now  # this process slept, and cannot tell who else did
            woke = now
            silent = now - line.heard
            if line.closed or silent > self._peer_timeout:
                host, port = self._place
                how = "is gone" if line.closed else f"has been silent for {silent:.1f} s"
                with self._told:
                    if not self._left and not self.broken and not self.over:
                        reason = f"the rendezvous at {host}:{port} {how}"
                        self.broken = News(reason, lost=True, since=now, silent=not line.closed)
                    self._told.notify_all()
                return
            line.send("beat")

    def _take(self, message: Message) -> None:
        with self._told:
            reason, now = str(message.get("reason")), time.monotonic()
            match message["kind"]:
                case "beat":
                    self._here = int(message["here"])
                case "start":
                    del message["kind"]
                    self._round = Round(**message)
                    self.change = None
                case "change":
                    self.change = News(reason, lost=message["lost"], since=now)
                case "broken":
                    self.broken = News(reason, lost=True, since=now, silent=message["silent"])
                case "over":
                    self.over = News(reason, lost=False, since=now)
            self._told.notify_all()

    def next_round(self, *, deadline: float, clean: bool, least: int) -> Round:
        """Say that the ranks here have ended, cleanly or not, and wait for the next round.

        Raises Fault(69) at `deadline`, `least` nodes not being there, or when the roll is gone, and
        Fault(143) after `leave`.
        """
        with self._told:
            if self._round is not None and self._round is self._entered:
                self._round = None
                self._send("ready", clean=clean)
            self._told.wait_for(
                lambda: self._round or self._is_in_vain(), timeout=deadline - time.monotonic()
            )
            self._check()
            found = self._newest()
            if found is None:
                host, port = self._place
                raise Fault(
                    Exit.PEER,
                    f"only {self._here} of {least} nodes came to the rendezvous at {host}:{port} "
                    "in time (TRAINER_RENDEZVOUS_TIMEOUT)",
                )
            self._entered = found
            return found

    def reach(self, port: int, *, deadline: float) -> None:
        """Wait until the keeper can be connected to at `port`, such as a round's store.

        Torch's client, for one, tries for as long as it is told to, deaf to what has become of the
        keeper. Raises Fault(69) when that is gone, or at `deadline`, and Fault(143) after `leave`.
        """
        while True:
            try:
                connect(self.keeper, port).close()
            except OSError as error:
                if time.monotonic() >= deadline:
                    place, why = f"{self.keeper}:{port}", error.strerror or error
                    raise Fault(
                        Exit.PEER,
                        f"no answer at {place}, where the nodes meet: {why}; let them reach each "
                        "other at every port",
                    ) from None
            else:
                return
            self.pause(0.5)

    def _newest(self) -> Round | None:
        """Return the round that the listening thread has set meanwhile, which no type checker sees."""
        return self._round

    def leave(self, ending: Exit) -> None:
        """Say farewell when the ranks are done or were stopped; otherwise go as a lost node."""
        with self._told:
            if not self._left and ending in (Exit.DONE, Exit.STOPPED):
                self._send("bye", done=ending == Exit.DONE)
            self._left = True
            self._told.notify_all()
        if self._line is not None:
            self._line.close()

    def _send(self, kind: str, **fields: object) -> None:
        if self._line is not None:
            self._line.send(kind, **fields)
