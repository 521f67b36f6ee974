"""Divides a run's wall time over causes: new steps, and everything else.

    account = Account()
    for event in events: account.take(event)
    account.spent      # {"training": 81.2, "repeated": 3.1, "start": 6.4, ...}, seconds
    account.goodput    # 0.89: the share of the wall time that went into new steps

The causes sum to the wall time: each event divides the time since the one before, and what no event
explains is "unknown". It is the time of rank 0.
"""

from trainer.report.events import Event

# Each with its meaning, which pages and legends show.
CAUSES = {
    "training": "steps done for the first time",
    "repeated": "steps done again after a restart or a rollback",
    "data": "waiting for samples",
    "stragglers": "the median rank waited for slower ranks",
    "checkpoint": "training waited for a checkpoint",
    "evaluation": "evaluations",
    "rendezvous": "waiting for the other nodes",
    "start": "imports, data set, checks of the machine, model, checkpoint to resume from",
    "end": "between the last step and the end of the processes",
    "down": "no rank ran: between two attempts, or after the last event of a killed rank",
    "unknown": "time that no event explains",
}

# What a rank spends its time on, as its watchdog sees it. The rendezvous is part of the launcher's time,
# and so are the imports if ranks are forked from a process that has done them.
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

# Events that explain all the time before them that no other event has explained.
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
        self._last: float | None = None  # time of the previous event
        self._free = 0.0  # seconds up to it that no event has explained
        self._is_started = self._is_training = False
        self._step = self._furthest = 0
        self._first = 0.0  # seconds before the first step event, if that has no `seconds`
        self._first_steps = 0
        self._stragglers = 0.0  # seconds of waiting that are not yet taken from the training

    @property
    def wall(self) -> float:
        """Seconds from the start of the first process to the last event."""
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
        """Divide the time since the previous event."""
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
        """An attempt began: no rank has run since the last event of the previous attempt."""
        if self._last is None:
            self._last = began
        self._advance(began)
        self._spend("down")

    def _advance(self, now: float) -> None:
        if self._last is not None and now > self._last:
            self._free += now - self._last
        self._last = now if self._last is None else max(now, self._last)

    def _spend(self, cause: str, seconds: float | None = None) -> None:
        """Give a cause `seconds` of the unexplained time; None: all of it."""
        seconds = self._free if seconds is None else min(max(float(seconds), 0.0), self._free)
        self.spent[cause] += seconds
        self._free -= seconds

    def _take_step(self, event: Event) -> None:
        """Count all steps since the previous step event."""
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
        """Count imports and first steps of a program whose events have no `seconds`."""
        self._first, self._first_steps = self._free, max(step - self._step, 1)
        self._spend("start")
        self._is_training, self._step = True, step

    def _divide_first(self, seconds: float, steps: int) -> None:
        """Assume that the first steps took as long as the next ones.

        After a resume their number is not known: it is assumed to be at most that of the next ones.
        """
        first = min(self._first_steps, steps)
        taken = min(seconds / steps * first, self._first)
        repeated = min(max(self._furthest - (self._step - first), 0), first) / first
        self.spent["start"] -= taken
        self.spent["repeated"] += taken * repeated
        self.spent["training"] += taken * (1 - repeated)
        self._furthest, self._first = max(self._furthest, self._step), 0.0
