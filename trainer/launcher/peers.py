"""How long the ranks of this node may still run after another node was lost or has finished.

event = overdue(client, 30, has_reported_failure=False, end_together=True)
"""

import time

from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.events import MembershipEvent

# In seconds. Ranks that are about to end by themselves can then end with the exit code of the cause.
_FINISHED = 15.0  # our trainer's ranks end together
_LOST = 1.0  # a failure here may be the cause
_LOST_AFTER_FAILURE = 4.0  # a rank here has reported a failure, and is exiting with its code
_SILENT = 0.0  # a failure here cannot be the cause


def overdue(
    client: RendezvousClient, grace: float, *, has_reported_failure: bool, end_together: bool
) -> MembershipEvent | None:
    """Return what happened to another node, after the ranks here have had their time to end.

    Ranks of another program that do not `end_together` may have work of their own after some have
    finished. After a node was stopped they have `grace` seconds: they may have agreed to stop, and save.
    """
    if event := client.peer_lost:
        seconds = _LOST_AFTER_FAILURE if has_reported_failure else _LOST
        seconds = _SILENT if event.silent else seconds
    elif event := client.peer_finished:
        seconds = grace if event.stopped else float("inf")
        seconds = _FINISHED if end_together else seconds
    return event if event and time.monotonic() - event.since >= seconds else None
