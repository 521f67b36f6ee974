"""The types of an event and of the function that reports it: `report("step", step=1, loss=2.3)`.

scores(event)     # of an eval event: {"accuracy": 0.98}
"""

from collections.abc import Callable
from typing import Any

from trainer.config.lines import EVAL_FIELDS

Event = dict[str, Any]
Report = Callable[..., None]


def scores(event: Event) -> dict[str, float]:
    """Return the scores of an eval event by name."""
    return {name: value for name, value in event.items() if name not in EVAL_FIELDS}
