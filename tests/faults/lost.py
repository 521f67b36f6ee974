"""How many steps a job repeated each time it went back to a checkpoint, according to its events.

assert all(went.beyond(interval) == 0 for went in returns(job.events))
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Return:
    """A return to a checkpoint: the last finished step, the checkpoint's, the newest saved one."""

    done: int
    back_to: int
    saved: int

    @property
    def lost(self) -> int:
        """Return how many finished steps are repeated."""
        return self.done - self.back_to

    def in_flight(self, interval: int) -> int:
        """Return how many of them were taken while a save was being written: the one due before `done`.

        0 if that save was reported as complete. A save that is due at `done` itself cannot have started
        before `done` was reported, and starts only when the previous save is complete.
        """
        due = self.done - 1 - (self.done - 1) % interval
        return 0 if self.saved >= due else self.done - due

    def beyond(self, interval: int) -> int:
        """Return how many steps are lost beyond the interval and those in flight."""
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
