"""Faults that happen on clusters, injected one after the other in random order."""

import contextlib
import signal
import time
from collections.abc import Callable

import psutil

from tests.faults.controller import Controlled
from tests.faults.hosts import Host

PEER_TIMEOUT = 3.0  # the default of TRAINER_PEER_TIMEOUT


def kill_a_rank(job: Controlled, host: Host) -> None:
    """SIGKILL to a launcher's ranks."""
    signal_to(job, host, signal.SIGKILL, ranks=True)


def kill_a_fork_server(job: Controlled, host: Host) -> None:
    """SIGKILL to the process that forks a launcher's ranks; they end with it."""
    for launcher in processes(job, host, ranks=False):
        with contextlib.suppress(psutil.NoSuchProcess):
            send(
                [one for one in launcher.children() if one.name() == "fork server"], signal.SIGKILL
            )


def kill_an_agent(job: Controlled, host: Host) -> None:
    """SIGKILL to the launcher; its rank must die too."""
    signal_to(job, host, signal.SIGKILL, ranks=False)


def kill_a_host(job: Controlled, host: Host) -> None:
    """Every process of a host at once, its link down."""
    host.die()
    job.later(1, host.mend)


def cut_a_link(job: Controlled, host: Host) -> None:
    """A silent cut, longer than the peer timeout."""
    host.cut()
    job.later(PEER_TIMEOUT * job.dice.uniform(1.5, 2.5), host.mend)


def cut_a_link_briefly(job: Controlled, host: Host) -> None:
    """A silent cut, shorter than the peer timeout."""
    host.cut()
    job.later(PEER_TIMEOUT * job.dice.uniform(0.1, 0.4), host.mend)


def stop_an_agent(job: Controlled, host: Host) -> None:
    """SIGSTOP to the launcher, and SIGCONT, perhaps too late."""
    stop_for(job, host, PEER_TIMEOUT * job.dice.uniform(0.2, 2), ranks=False)


def stop_a_rank(job: Controlled, host: Host) -> None:
    """SIGSTOP to a rank, and SIGCONT: all wait for it."""
    stop_for(job, host, job.dice.uniform(0.5, 4), ranks=True)


def slow_a_rank(job: Controlled, host: Host) -> None:
    """A rank that gets a tenth of its time."""
    for tenth in range(20):
        job.later(tenth * 0.2, lambda: stop_for(job, host, 0.18, ranks=True))


def send_a_node_away(job: Controlled, host: Host) -> None:
    """SIGTERM to the launcher: it leaves in order, and comes back later."""
    signal_to(job, host, signal.SIGTERM, ranks=False)
    if host.number:
        job.wanted.discard(host.number)
        job.later(job.dice.uniform(3, 12), lambda: job.wanted.add(host.number))


FAULTS = [
    kill_a_rank,
    kill_a_fork_server,
    kill_an_agent,
    kill_a_host,
    cut_a_link,
    cut_a_link_briefly,
    stop_an_agent,
    stop_a_rank,
    slow_a_rank,
    send_a_node_away,
]
NEED_LINKS = {cut_a_link, cut_a_link_briefly}


def processes(job: Controlled, host: Host, *, ranks: bool) -> list[psutil.Process]:
    node = job.running.get(host.number)
    try:
        if node is None:
            return []
        return node.ranks() if ranks else [psutil.Process(node.process.pid)]
    except psutil.NoSuchProcess:
        return []


def signal_to(job: Controlled, host: Host, number: signal.Signals, *, ranks: bool) -> None:
    send(processes(job, host, ranks=ranks), number)


def send(found: list[psutil.Process], number: signal.Signals) -> None:
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def stop_for(job: Controlled, host: Host, seconds: float, *, ranks: bool) -> None:
    stopped = processes(job, host, ranks=ranks)  # only these, no rank that starts in the meantime
    send(stopped, signal.SIGSTOP)
    job.later(seconds, lambda: send(stopped, signal.SIGCONT))


def disturb(job: Controlled, seconds: float, *, interval: int, links: bool) -> None:
    """Inject one fault after the other; check each time that the job makes steps again."""
    possible = [fault for fault in FAULTS if links or fault not in NEED_LINKS]
    job.wait_for_steps(interval + 5)  # the seconds do not include the start
    end = time.monotonic() + seconds
    deck: list[Callable[[Controlled, Host], None]] = []
    while time.monotonic() < end and not job.finished:
        # Each fault once before any is repeated, so that a short soak has most of them.
        deck = deck or job.dice.sample(possible, len(possible))
        fault = deck.pop()
        host = job.dice.choice([h for h in job.job.hosts if h.number in job.running])
        job.note(f"step {job.step()[1]}: {fault.__name__} on host {host.number}")
        job.faults[fault.__name__] += 1
        fault(job, host)
        job.tick()
        time.sleep(0.3)  # a step that had started before the fault does not count as a recovery
        job.recoveries.append(job.wait_for_steps(job.dice.randrange(3, 40)))
