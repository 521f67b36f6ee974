"""What an event is, and what reports one: `report("step", step=1, loss=2.3)`."""

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Report = Callable[..., None]
