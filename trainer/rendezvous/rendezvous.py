"""The rendezvous of torch's elastic agent, on the roll that node 0 keeps (trainer/rendezvous/server.py).

A job of fixed size meets at its master's address, an elastic one at its endpoint. Every round has a
store of its own, so that no key of a former one is ever read.
"""

import contextlib
import errno
import socket
import time
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from trainer.config.contract import Contract
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.rendezvous.client import Member, Round
from trainer.rendezvous.server import Coordinator, Rules

# Seconds to reach a round's store, which is there before anybody is told of it. Torch's own client has
# as many again; should the keeper vanish only then, that wait cannot be ended.
_CONNECT = 30.0


class Rendezvous(RendezvousHandler):
    """Meets the other nodes. `member` knows what has become of them since."""

    use_agent_store = True

    def __init__(self, contract: Contract, settings: Settings) -> None:
        self._contract = contract
        self._timeout = settings.rendezvous_timeout
        self._rules = Rules(
            contract.rendezvous_id,
            contract.min_nodes,
            contract.max_nodes,
            contract.elastic,
            settings.peer_timeout,
            settings.last_call,
        )
        self.member = Member(
            contract.address,
            contract.port,
            job=contract.rendezvous_id,
            ranks=contract.ranks_per_node,
            peer_timeout=settings.peer_timeout,
        )
        self.round: Round | None = None  # the newest one
        self.clean = True  # whether the ranks of the last round could save before they ended
        self.leaving = False  # whether this node was told to stop, and comes to no further round
        self._coordinator: Coordinator | None = None
        self._store: TCPStore | None = None
        self._joined = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other nodes and return this node's place. Raises Fault(69) or Fault(143)."""
        contract = self._contract
        deadline = time.monotonic() + self._timeout
        if not self._joined:
            self._keep_the_roll(deadline)
            self.member.join(
                contract.node_rank, deadline=deadline, own_address=contract.local_address
            )
            self._joined = True
        self.round = found = self.member.next_round(
            deadline=deadline, clean=self.clean, least=contract.min_nodes
        )
        # Where the roll was found, not the name: that can lead elsewhere the next time it is asked,
        # to a pod that this one replaced.
        address = self.member.keeper
        self.member.reach(found.store, deadline=min(deadline, time.monotonic() + _CONNECT))
        store = TCPStore(address, found.store, is_master=False, timeout=timedelta(seconds=_CONNECT))
        return RendezvousInfo(
            store, found.rank, len(found.nodes), RendezvousStoreInfo(address, found.store)
        )

    def _keep_the_roll(self, deadline: float) -> None:
        """Keep the roll here if this is the place for it. Raises Fault(69) when the port is taken."""
        contract = self._contract
        if not (self._is_the_place(deadline) if contract.elastic else contract.node_rank == 0):
            return
        try:
            listener = _listen(contract.address, contract.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if contract.elastic:
                return  # another agent on this machine keeps it
            raise Fault(
                Exit.PEER, f"port {contract.port} is in use on this machine; set PET_MASTER_PORT"
            ) from None
        self._coordinator = Coordinator(listener, self._rules, self._open_store)

    def _is_the_place(self, deadline: float) -> bool:
        """Return whether the endpoint is here; its name may take a while to resolve."""
        while True:
            try:
                return _is_own_address(self._contract.address)
            except socket.gaierror:
                if time.monotonic() >= deadline:
                    return False
                self.member.pause(0.5)

    def _open_store(self) -> int:
        self._store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True
        )
        port: int = self._store.port
        return port

    @property
    def is_kept_here(self) -> bool:
        """Whether this node keeps the roll, and so speaks for all where one has to."""
        return self._coordinator is not None

    def leave(self, ending: Exit) -> None:
        """Take leave of the others; wakes a wait in `next_rendezvous`, which then raises Fault(143)."""
        self.member.leave(ending)

    def close(self) -> None:
        """End the roll, if it was kept here."""
        if self._coordinator is not None:
            self._coordinator.close()

    def num_nodes_waiting(self) -> int:
        """Return 1 when this node is to come to another round, else 0: all that the agent asks."""
        return int(self.member.change is not None and not self.leaving)

    def get_backend(self) -> str:
        return "muster"

    def get_run_id(self) -> str:
        return self._contract.rendezvous_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


def _listen(address: str, port: int) -> socket.socket:
    """Listen at `port`: of every interface, unless all nodes come from this machine."""
    if address == "127.0.0.1":
        return socket.create_server((address, port))
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _is_own_address(host: str) -> bool:
    """Return whether a name is this machine's: whether one can listen at what it resolves to."""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False
