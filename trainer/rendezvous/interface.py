"""Which network interface the ranks of several nodes talk over, where nobody has said.

Left alone, gloo listens at what this machine's name resolves to, which Debian lets be a loopback
address, and NCCL takes the first interface it finds, which may lead nowhere (dstack's snippet,
sglang 3784). The one whose address this node has been given leads to the others, or else the one that
leads to the master.

    for name, value in choice(contract, os.environ): ...
"""

import contextlib
import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.config.contract import Contract

_SIOCGIFADDR = 0x8915  # linux/sockios.h

# The sign is NCCL's for this very name, and not each that begins like it.
_VARIABLES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}


def choice(contract: Contract, environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the variables to set, none where there is nothing to choose, and why in words."""
    unsaid = {name: text for name, text in _VARIABLES.items() if not _said(name, environment)}
    if contract.max_nodes == 1 and contract.local_address is None:
        return {}, ""
    if not unsaid or sys.platform != "linux":
        return {}, ""
    given = contract.local_address
    address = given or _way_to(contract.address, contract.port)
    name = _interface_of(address) if address else None
    if name is None:
        return {}, ""
    why = f"it has PET_LOCAL_ADDR, {given}" if given else f"it leads to {contract.address}"
    return {variable: text.format(name) for variable, text in unsaid.items()}, why


def _said(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment says it, or for NCCL one of its files."""
    if name in environment:
        return True
    files = [environment.get("NCCL_CONF_FILE") or "~/.nccl.conf", "/etc/nccl.conf"]
    for file in files if name.startswith("NCCL") else ():
        with contextlib.suppress(OSError, RuntimeError):  # there is none; there is no home
            if name in Path(file).expanduser().read_text(encoding="utf-8", errors="replace"):
                return True
    return False


def _way_to(host: str, port: int) -> str | None:
    """Return the address of this machine from which packets to `host` go; none are sent."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None


def _interface_of(address: str) -> str | None:
    """Return the name of the interface that has `address`."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.version == 6:
        return _interface_of_ipv6(wanted.packed.hex())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
                if answer[20:24] == wanted.packed:
                    return name
    return None


def _interface_of_ipv6(digits: str) -> str | None:
    with contextlib.suppress(OSError):  # there is no IPv6 here
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            if line.startswith(digits):
                return line.split()[-1]
    return None
