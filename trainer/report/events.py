"""The types of an event and of the function that reports it: `report("step", step=1, loss=2.3)`."""

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Report = Callable[..., None]
