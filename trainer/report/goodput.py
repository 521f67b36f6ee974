"""Divides a run's wall time over causes: new steps, and all that was not a new step.

    account = Account()
    for event in events: account.take(event)
    account.spent      # {"training": 81.2, "repeated": 3.1, "start": 6.4, ...}, seconds
    account.goodput    # 0.89: the share of the wall time that went into new steps

The causes sum to the wall time: each event divides the time since the one before, and what no event
explains is "unknown". Of the ranks it is rank 0's time.
"""

from trainer.report.events import Event

# Each with what it means, as pages and legends have it.
CAUSES = {
    "training": "steps taken for the first time",
    "repeated": "steps done again after a restart or a rollback",
    "data": "waiting for samples",
    "stragglers": "steps in which the middle rank waited for a slower one",
    "checkpoint": "training waited for a checkpoint",
    "evaluation": "evaluations",
    "rendezvous": "waiting for the other nodes",
    "start": "imports, data set, checks of the machine, model, checkpoint to resume from",
    "end": "from the last step to the end of the processes",
    "down": "no rank ran: between two attempts, or from the last sign of one that was killed",
    "unknown": "what no event explains",
}

# What a rank's own time goes into, as its watchdog sees it. Rendezvous is its launcher's, and so are the
# imports where ranks are forked from a process that has made them.
PHASES = (
    "import",
    "join",
    "start",
    "preflight",
    "data",
    "compute",
    "communication",
    "device",
    "checkpoint",
    "evaluation",
)

# Events that say what all the time before them was, as far as no other event has.
_ALL_BEFORE = {
    "launched": "start",
    "started": "rendezvous",
    "launch": "start",
    "resumed": "start",
    "failed": "end",
    "ended": "end",
    "summary": "end",
    "error": "end",
}
# Events that say how long something took: the cause, and the field with its seconds.
_WITH_SECONDS = {
    "saved": ("checkpoint", "blocked_s"),
    "eval": ("evaluation", "seconds"),
    "sample": ("evaluation", "seconds"),
}


class Account:
    """The wall time of a run so far, from its events in the order of their time."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(CAUSES, 0.0)
        self.launches = 0  # of rank 0
        self._last: float | None = None  # time of the event before
        self._free = 0.0  # seconds before it that no event has explained
        self._is_started = self._is_training = False
        self._step = self._furthest = 0
        self._first = 0.0  # seconds before the first step event, where that does not say its own
        self._first_steps = 0
        self._stragglers = 0.0  # seconds of training that were a wait, of no step event so far

    @property
    def wall(self) -> float:
        """Seconds from the first event's process to the last event."""
        return sum(self.spent.values()) + self._free

    @property
    def goodput(self) -> float:
        """The share of the wall time that went into new steps, 0 to 1."""
        return self.spent["training"] / self.wall if self.wall > 0 else 0.0

    def by_cause(self) -> dict[str, float]:
        """Return the seconds of each cause that has any."""
        total = self.spent | {"unknown": self.spent["unknown"] + self._free}
        return {cause: seconds for cause, seconds in total.items() if seconds > 0}

    def take(self, event: Event) -> None:
        """Divide the time since the event before."""
        kind = str(event["event"])
        if kind in ("attempt", "checkpoint"):
            kind = str(event.get("action"))
        if kind == "launched" or (kind == "launch" and not self._is_started):
            self._begin(float(event["began" if "began" in event else "time"]))
        self._advance(float(event["time"]))
        if kind in _ALL_BEFORE:
            self._spend(_ALL_BEFORE[kind])
        elif kind in _WITH_SECONDS:
            cause, field = _WITH_SECONDS[kind]
            self._spend(cause, event.get(field, 0.0))
        elif kind == "step":
            self._take_step(event)
        elif kind == "usage":
            self._stragglers += max(float(event.get("stragglers_s", 0.0)), 0.0)
        waited = min(self._stragglers, self.spent["training"])
        self._stragglers -= waited
        self.spent["training"] -= waited
        self.spent["stragglers"] += waited
        if kind == "started":
            self._is_started = True
        elif kind == "launch":
            self.launches += 1
            self._is_started, self._is_training, self._step, self._first = False, False, 0, 0.0
        elif kind == "resumed" or event.get("kind") == "rolled_back":
            self._step = int(event.get("to") or event.get("step") or 0)

    def _begin(self, began: float) -> None:
        """An attempt began: since the last sign of the one before it no rank has run."""
        if self._last is None:
            self._last = began
        self._advance(began)
        self._spend("down")

    def _advance(self, now: float) -> None:
        if self._last is not None and now > self._last:
            self._free += now - self._last
        self._last = now if self._last is None else max(now, self._last)

    def _spend(self, cause: str, seconds: float | None = None) -> None:
        """Give a cause `seconds` of the time that is not explained, all of it with None."""
        seconds = self._free if seconds is None else min(max(float(seconds), 0.0), self._free)
        self.spent[cause] += seconds
        self._free -= seconds

    def _take_step(self, event: Event) -> None:
        """A step event is about all steps since the one before it."""
        step = int(event.get("step", 0))
        if "seconds" not in event and not self._is_training:
            self._take_first(step)
            return
        seconds = min(max(float(event.get("seconds", self._free)), 0.0), self._free)
        data = min(max(float(event.get("data_s", 0.0)), 0.0), seconds)
        self._spend("data", data)
        seconds -= data
        if self._first:
            self._divide_first(seconds, max(step - self._step, 1))
        steps = max(step - self._step, 1)
        repeated = min(max(self._furthest - self._step, 0), steps) / steps
        self._spend("repeated", seconds * repeated)
        self._spend("training", seconds * (1 - repeated))
        if not self._is_training:
            self._spend("start")
        self._is_training = True
        self._step, self._furthest = step, max(self._furthest, step)

    def _take_first(self, step: int) -> None:
        """Imports and the first steps of a program that does not say how long these took."""
        self._first, self._first_steps = self._free, max(step - self._step, 1)
        self._spend("start")
        self._is_training, self._step = True, step

    def _divide_first(self, seconds: float, steps: int) -> None:
        """Take the first steps' time to be that of the next ones, and as many where it was resumed."""
        first = min(self._first_steps, steps)
        taken = min(seconds / steps * first, self._first)
        repeated = min(max(self._furthest - (self._step - first), 0), first) / first
        self.spent["start"] -= taken
        self.spent["repeated"] += taken * repeated
        self.spent["training"] += taken * (1 - repeated)
        self._furthest, self._first = max(self._furthest, self._step), 0.0
