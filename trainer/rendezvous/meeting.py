"""How a node gets to the rendezvous: one node starts the server, the others connect to it.

In a job of fixed size node 0 runs the server, at the master's address. In an elastic job it is the
node that has the endpoint's address.

    meeting = Meeting(contract, rules, secret=secret_from(os.environ))
    client = RendezvousClient(contract, meeting.open, secret=meeting.secret, ...)
"""

import contextlib
import errno
import socket
from collections.abc import MutableMapping
from pathlib import Path

from trainer.config.contract import Contract
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.connection import connect
from trainer.rendezvous.membership import Rules
from trainer.rendezvous.server import RendezvousServer

SECRET = "MUSTER_RENDEZVOUS_SECRET"  # noqa: S105  # the name


class Meeting:
    """`open` returns a connection to the server, which is `server` if it runs on this node."""

    def __init__(self, contract: Contract, rules: Rules, *, secret: str) -> None:
        self._contract, self._rules, self.secret = contract, rules, secret
        self.server: RendezvousServer | None = None
        self._reserved: socket.socket | None = None

    def open(self) -> socket.socket:
        """Connect to the server. Raises OSError if that may work later, and Fault(69) or Fault(71)."""
        contract = self._contract
        # Asked again at each try: an elastic job's name may first resolve to the earlier pod's address.
        serves = _has_address(contract.address) if contract.elastic else contract.node_rank == 0
        if serves and self.server is None:
            try:
                listener = _listen(contract.address, contract.port, own=contract.local_address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if not contract.elastic:
                    problem = f"port {contract.port} is in use on this machine; set PET_MASTER_PORT"
                    raise Fault(Exit.PEER, problem) from None
                # Another launcher on this machine runs the server. If its job ends, we can.
            else:
                self.server = RendezvousServer(
                    listener, self._rules, job=contract.rendezvous_id, secret=self.secret
                )
                return self.server.own_socket
        return connect(contract.address, contract.port)

    def reserve_port(self) -> int:
        """Return a free port of this node, where rank 0 will keep a round's store.

        A socket is bound to it until the next call. So before rank 0 listens there, the system gives
        the port to no other process, and to no connection. Rank 0 must listen with SO_REUSEADDR, which
        torch's store sets.
        """
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("", 0))
        return int(self._reserved.getsockname()[1])


def secret_from(environment: MutableMapping[str, str]) -> str:
    """Take the shared secret out of the environment, because no rank needs it; "" if there is none.

    It is MUSTER_RENDEZVOUS_SECRET, or the content of the file MUSTER_RENDEZVOUS_SECRET_FILE. Raises
    Fault(64).
    """
    secret, file = environment.pop(SECRET, ""), environment.get(f"{SECRET}_FILE")
    if secret or not file:
        return secret
    try:
        secret = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Fault(Exit.CONFIG, f"{SECRET}_FILE={file!r}: cannot be read: {error}") from None
    if not secret:
        raise Fault(Exit.CONFIG, f"{SECRET}_FILE={file!r}: is empty")
    return secret


def _listen(address: str, port: int, *, own: str | None) -> socket.socket:
    """Listen on the address that the other nodes use if it is known, else on all interfaces.

    It is known to be `own` (PET_LOCAL_ADDR) if `address` resolves to it or does not resolve yet, and an
    interface has it. Behind a NAT no interface has the address that others use.
    """
    if address == "127.0.0.1":
        return socket.create_server((address, port))
    resolved = []
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
        resolved = [one[4][0] for one in found]
    if own is not None and (own in resolved or not resolved) and _has_address(own):
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        return socket.create_server((own, port), family=family)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _has_address(host: str) -> bool:
    """Return whether `host` is this machine, that is, whether one can bind to its address."""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False
