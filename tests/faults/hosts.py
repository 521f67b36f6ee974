"""Several hosts on this machine: network namespaces, each with a link to one switch.

A link is a veth pair, or a wire: this process forwards each frame, delays it or drops it. Needs root
and iproute2; `why_not()` says what is missing. Everything is removed when the block ends:

    with network() as net:
        host = net.host()
        host.start(folder, "-m", "trainer.launch", PET_NNODES="2", ...)
        host.cut()          # silent: no FIN, no RST
"""

import contextlib
import fcntl
import functools
import heapq
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.conftest import Started

_SWITCH = "switch0"


@functools.cache
def why_not() -> str | None:
    """Return why there can be no hosts here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    name = f"muster-{os.getpid()}-probe"
    tried = _run("ip", "netns", "add", name, check=False)
    if tried.returncode:
        return f"network namespaces are not permitted here: {tried.stderr.strip()}"
    made = _run("ip", "-n", name, "link", "add", _SWITCH, "type", "bridge", check=False)
    _run("ip", "netns", "del", name)
    return f"no bridge in a namespace: {made.stderr.strip()}" if made.returncode else None


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=check)


class Host:
    """One host: its `address`, its link, and its processes."""

    def __init__(self, net: "Network", number: int, wire: "Wire | None") -> None:
        self.number = number
        self.address = f"10.77.{number // 250}.{number % 250 + 1}"
        self.wire = wire
        self.started: list[Started] = []
        self._net = net
        self.name = f"{net.name}-{number}"
        self._port = f"port{number}"
        _run("ip", "netns", "add", self.name)
        if wire is None:
            here = ("ip", "-n", net.name)
            far = ("peer", "name", "eth0", "netns", self.name)
            _run(*here, "link", "add", self._port, "type", "veth", *far)
        else:
            wire.connect(self.name, net.name, self._port)
        _run("ip", "-n", net.name, "link", "set", self._port, "master", _SWITCH, "up")
        for command in (
            f"addr add {self.address}/16 dev eth0",
            "link set eth0 up",
            "link set lo up",
        ):
            _run("ip", "-n", self.name, *command.split())

    def start(self, folder: Path, *arguments: str, **env: str) -> Started:
        """Start `python ARGUMENTS` on this host, with its output below `folder`."""
        place = folder / f"host-{self.number}-{len(self.started)}"
        place.mkdir(parents=True)
        prefix = ("ip", "netns", "exec", self.name)
        self.started.append(Started(place, *arguments, env=env, prefix=prefix))
        return self.started[-1]

    def knows(self, name: str, *addresses: str) -> None:
        """Resolve a name to these addresses, in this order, in processes that start later."""
        folder = Path("/etc/netns") / self.name  # `ip netns exec` mounts it over /etc
        folder.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address in addresses)]
        (folder / "hosts").write_text("\n".join(lines) + "\n", encoding="ascii")

    def cut(self) -> None:
        """Take the link down at the switch: frames are lost, without an error."""
        _run("ip", "-n", self._net.name, "link", "set", self._port, "down")

    def mend(self) -> None:
        _run("ip", "-n", self._net.name, "link", "set", self._port, "up")

    def die(self) -> None:
        """Lose power: the link goes down, then every process is killed."""
        self.cut()
        self.kill_all()

    def kill_all(self) -> None:
        for _ in range(20):
            if not (pids := self.processes()):
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for started in self.started:
            started.process.wait(10)

    def processes(self) -> list[int]:
        """Return the numbers of the processes on this host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.name).stdout.split()]

    def remove(self) -> None:
        self.kill_all()
        for started in self.started:
            started.clear()
        if self.wire:
            self.wire.close()
        shutil.rmtree(Path("/etc/netns") / self.name, ignore_errors=True)
        _run("ip", "netns", "del", self.name, check=False)


class Loopback:
    """A host without namespaces: a group of processes at the loopback address."""

    address = "127.0.0.1"

    def __init__(self, number: int) -> None:
        self.number = number
        self.started: list[Started] = []

    def start(self, folder: Path, *arguments: str, **env: str) -> Started:
        place = folder / f"host-{self.number}-{len(self.started)}"
        place.mkdir(parents=True)
        self.started.append(Started(place, *arguments, env=env))
        return self.started[-1]

    def die(self) -> None:
        for started in self.started:
            if started.process.poll() is None:
                for process in started.family():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()

    def mend(self) -> None:
        """Do nothing: there is no link."""

    def processes(self) -> list[int]:
        alive = [started for started in self.started if started.process.poll() is None]
        return [process.pid for started in alive for process in started.family()]

    def remove(self) -> None:
        for started in self.started:
            started.clear()


class Wire:
    """A link that this process forwards: every frame arrives `delay` seconds late, and some are lost."""

    def __init__(self, *, delay: float = 0, loss: float = 0) -> None:
        self.delay, self.loss = delay, loss
        self._ends: list[int] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self, host: str, switch: str, port: str) -> None:
        """Connect `eth0` of one namespace with `port` of another."""
        self._ends = [_tap(host, "eth0"), _tap(switch, port)]
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not self._closed.is_set():
            wait = min(0.1, max(0.0, under_way[0][0] - time.monotonic())) if under_way else 0.1
            for end in select.select(self._ends, [], [], wait)[0]:
                frame = os.read(end, 65536)
                if random.random() >= self.loss:  # noqa: S311
                    other = self._ends[1 - self._ends.index(end)]
                    count += 1
                    heapq.heappush(under_way, (time.monotonic() + self.delay, count, other, frame))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, end, frame = heapq.heappop(under_way)
                with contextlib.suppress(OSError):  # one end is down
                    os.write(end, frame)

    def close(self) -> None:
        self._closed.set()
        if self._thread:
            self._thread.join(2)
        for end in self._ends:
            os.close(end)


def _tap(namespace: str, name: str) -> int:
    """Return a descriptor that reads and writes the Ethernet frames of a new device."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    made = f"mst{os.getpid() % 100000}{name[-3:]}"
    tunsetiff, iff_tap, iff_no_pi = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
    fcntl.ioctl(descriptor, tunsetiff, struct.pack("16sH22x", made.encode(), iff_tap | iff_no_pi))
    _run("ip", "link", "set", made, "netns", namespace, "name", name)
    return descriptor


class Network:
    """A switch and the hosts on it."""

    def __init__(self) -> None:
        self.name = f"muster-{os.getpid()}-{random.randrange(10**6)}"  # noqa: S311
        self.hosts: list[Host] = []
        self._made = 0
        _run("ip", "netns", "add", self.name)
        _run("ip", "-n", self.name, "link", "add", _SWITCH, "type", "bridge")
        _run("ip", "-n", self.name, "link", "set", _SWITCH, "up")

    def host(self, wire: Wire | None = None) -> Host:
        """Add a host; only with a wire is its link late."""
        self.hosts.append(Host(self, self._made, wire))
        self._made += 1
        return self.hosts[-1]

    def drop(self, host: Host) -> None:
        """Remove one host; its address is not used again."""
        self.hosts.remove(host)
        host.remove()

    def remove(self) -> None:
        for host in self.hosts:
            host.remove()
        _run("ip", "netns", "del", self.name, check=False)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Yield a network, and remove it when the block ends, also after an error."""
    net = Network()
    try:
        yield net
    finally:
        net.remove()
