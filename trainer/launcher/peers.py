"""How long the ranks here may still run once another node is lost, or has finished.

event, seconds = time_left(client, has_reported_failure=False)
"""

import time
from collections.abc import Callable

from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.events import MembershipEvent
from trainer.rendezvous.server import RendezvousServer

# In seconds. Ranks that are about to end anyway do so with the exit code of the cause.
_FINISHED = 15.0  # the ranks here should be finishing, too
_LOST = 1.0  # possibly because of a failure here
_LOST_AFTER_FAILURE = 4.0  # a rank here has reported a failure, and is exiting with it
_SILENT = 0.0  # not because of a failure here
_LAST_NODE = 30.0  # nodes end within seconds of each other
_TURN = 0.003


def time_left(
    client: RendezvousClient, *, has_reported_failure: bool
) -> tuple[MembershipEvent | None, float]:
    """Return what has happened to the other nodes, and the seconds from then on; None: nothing."""
    if event := client.peer_lost:
        if event.silent:
            return event, _SILENT
        return event, _LOST_AFTER_FAILURE if has_reported_failure else _LOST
    return client.peer_finished, _FINISHED


def wait_for_last_node(server: RendezvousServer, is_stopped: Callable[[], bool]) -> None:
    """Wait until the other nodes have finished, too, or until `is_stopped`, which is asked often."""
    end = time.monotonic() + _LAST_NODE
    while server.present and not is_stopped() and time.monotonic() < end:
        time.sleep(_TURN)
