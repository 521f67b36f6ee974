"""The rendezvous server and client, as the RendezvousHandler that torch's elastic agent asks for.

A job of fixed size meets at its master's address, an elastic one at its endpoint; the node that has
that address runs the server. Every round has a TCPStore of its own, so no key of an earlier round is
ever read.

    handler = TorchRendezvousHandler(contract, settings)
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
from trainer.rendezvous.client import RendezvousClient, Round
from trainer.rendezvous.server import RendezvousServer, Rules

# Seconds to reach a round's store, which is open before any node is sent its port. torch's client waits
# as long again, and that wait cannot be cut short when the server is lost meanwhile.
_STORE_TIMEOUT = 30.0


class TorchRendezvousHandler(RendezvousHandler):
    """Meets the other nodes. `client` has the events since."""

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
        self.client = RendezvousClient(
            contract.address,
            contract.port,
            job=contract.rendezvous_id,
            ranks=contract.ranks_per_node,
            peer_timeout=settings.peer_timeout,
        )
        self.round: Round | None = None  # the newest one
        self.clean = True  # whether the ranks of the last round could save before they ended
        self.leaving = False  # this node was asked to stop, and takes part in no further round
        self._server: RendezvousServer | None = None
        self._store: TCPStore | None = None
        self._joined = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other nodes and return this node's place. Raises Fault(69) or Fault(143)."""
        contract, client = self._contract, self.client
        deadline = time.monotonic() + self._timeout
        if not self._joined:
            self._start_server_if_here(deadline)
            client.join(contract.node_rank, deadline=deadline, own_address=contract.local_address)
            self._joined = True
        self.round = found = client.next_round(
            deadline=deadline, clean=self.clean, min_nodes=contract.min_nodes
        )
        # The address, not the name: that may resolve to a replaced pod the next time.
        host, port = client.server, found.store
        client.wait_for_port(port, deadline=min(deadline, time.monotonic() + _STORE_TIMEOUT))
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_STORE_TIMEOUT))
        place = RendezvousStoreInfo(host, port)
        return RendezvousInfo(store, found.rank, len(found.nodes), place)

    def _start_server_if_here(self, deadline: float) -> None:
        """Start the server if this node has its address. Raises Fault(69) when the port is taken."""
        contract = self._contract
        if not (self._has_endpoint(deadline) if contract.elastic else contract.node_rank == 0):
            return
        try:
            listener = _listen(contract.address, contract.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if contract.elastic:
                return  # another launcher on this machine serves
            raise Fault(
                Exit.PEER, f"port {contract.port} is in use on this machine; set PET_MASTER_PORT"
            ) from None
        self._server = RendezvousServer(listener, self._rules, self._open_store)

    def _has_endpoint(self, deadline: float) -> bool:
        """Return whether the endpoint is this machine; its name may not resolve at once."""
        while True:
            try:
                return _is_own_address(self._contract.address)
            except socket.gaierror:
                if time.monotonic() >= deadline:
                    return False
                self.client.pause(0.5)

    def _open_store(self) -> int:
        self._store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True
        )
        port: int = self._store.port
        return port

    @property
    def is_server(self) -> bool:
        """Whether the server runs on this node, which then counts and reports for all nodes."""
        return self._server is not None

    def leave(self, ending: Exit) -> None:
        """Leave the job; a wait in `next_rendezvous` then raises Fault(143)."""
        self.client.leave(ending)

    def close(self) -> None:
        """Stop the server, if it runs here."""
        if self._server is not None:
            self._server.close()

    def num_nodes_waiting(self) -> int:
        """Return 1 when this node is to go to the next round, else 0; the agent asks no more."""
        return int(self.client.membership_changed is not None and not self.leaving)

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
    """Listen on all interfaces, or on loopback when all nodes are on this machine."""
    if address == "127.0.0.1":
        return socket.create_server((address, port))
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _is_own_address(host: str) -> bool:
    """Return whether `host` is this machine, that is, whether one can bind to its address."""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False
