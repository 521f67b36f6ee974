"""How many steps a job did again, each time it went back to a checkpoint, by its own events.

assert all(went.beyond(interval) == 0 for went in returns(job.events))
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Return:
    """One return to a checkpoint: the last step done, the one gone back to, the newest known saved."""

    done: int
    back_to: int
    saved: int

    @property
    def lost(self) -> int:
        """Return how many finished steps are done again."""
        return self.done - self.back_to

    def in_flight(self, interval: int) -> int:
        """Return how many of them were taken while the save due before the last was being written.

        None, when that save had been reported as complete. The one due at the last step itself cannot
        have begun before that step was reported, and begins only when the one before it is complete.
        """
        due = self.done - 1 - (self.done - 1) % interval
        return 0 if self.saved >= due else self.done - due

    def beyond(self, interval: int) -> int:
        """Return how many steps more than the interval, and those in flight, are lost."""
        return max(0, self.lost - interval - self.in_flight(interval))


def returns(events: list[dict[str, Any]]) -> list[Return]:
    """Return every return of a job to a checkpoint, in order."""
    found, done, saved = [], 0, 0
    for event in events:
        if event["event"] == "step":
            done = event["step"]
        elif event.get("action") == "saved":
            saved = event["step"]
        elif event.get("action") == "resumed":
            found.append(Return(done, event["step"], saved))
            done = saved = event["step"]
    return found
