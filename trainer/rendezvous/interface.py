"""Choose the network interface that gloo and NCCL use between nodes, unless the user has chosen one.

By default gloo listens on the address of this machine's name, which is a loopback address on Debian.
NCCL takes the first interface it finds, which may not reach other nodes (dstack's snippet, sglang 3784).
This module chooses the interface with PET_LOCAL_ADDR, or else the one that routes to the master.

    variables, reason = choose_interface(contract, os.environ)
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

# NCCL takes a name as a prefix; with an equals sign before it the name must match exactly.
_VARIABLES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}


def choose_interface(
    contract: Contract, environment: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Return the variables to set, none if there is nothing to choose, and the reason."""
    unset = {name: form for name, form in _VARIABLES.items() if not _is_set(name, environment)}
    local = contract.local_address
    if not unset or sys.platform != "linux" or (contract.max_nodes == 1 and local is None):
        return {}, ""
    address = local or _source_address(contract.address, contract.port)
    name = _interface_with(address) if address else None
    if name is None:
        return {}, ""
    reason = f"it has PET_LOCAL_ADDR, {local}" if local else f"it leads to {contract.address}"
    return {variable: form.format(name) for variable, form in unset.items()}, reason


def _is_set(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment sets `name`, or for NCCL one of its configuration files."""
    if name in environment:
        return True
    files = [environment.get("NCCL_CONF_FILE") or "~/.nccl.conf", "/etc/nccl.conf"]
    for file in files if name.startswith("NCCL") else ():
        with contextlib.suppress(OSError, RuntimeError):  # no such file; no home
            if name in Path(file).expanduser().read_text(encoding="utf-8", errors="replace"):
                return True
    return False


def _source_address(host: str, port: int) -> str | None:
    """Return this node's address from which packets to `host` would come; no packet is sent."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None


def _interface_with(address: str) -> str | None:
    """Return the name of the interface that has `address`."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.version == 6:
        with contextlib.suppress(OSError):  # no IPv6 on this machine
            for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
                if line.startswith(wanted.packed.hex()):
                    return line.split()[-1]
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if answer[20:24] == wanted.packed:
                    return name
    return None
