"""Mode `auto` when the memory of a device is known: the first mode whose dry run fits.

The launcher decides once per node and gives the result to its ranks in MUSTER_MODE, so a restart does
not decide again. Under torchrun the ranks decide. In both cases all ranks use rank 0's decision.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from trainer.config.environment import variable
from trainer.config.exits import Fault
from trainer.config.settings import Settings
from trainer.plan import memory
from trainer.plan.sizing import Sizing, by_memory, size

VARIABLE = "MUSTER_MODE"
SECONDS = 120  # for all dry runs of a decision together

# A fraction of a device's memory. The rest is not for tensors (context, kernels, fragments).
USABLE = 0.9

# Of NVIDIA, AMD and WSL. To ask a driver would need torch, and a second or more.
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")


class Choice(NamedTuple):
    mode: str
    reason: str


class Store(Protocol):
    """The methods of torch's store that are used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...


def is_open(settings: Settings, sizing: Sizing) -> bool:
    """Return whether `auto` may choose by memory: there are several ranks, and no mesh is set."""
    return settings.mode == "auto" and not settings.mesh and sizing.mode == by_memory()[0]


def choose(
    settings: Settings,
    sizing: Sizing,
    *,
    device_bytes: int | None = None,
    seconds: float = SECONDS,
) -> Choice:
    """Choose by dry runs in another process; return the usual mode if they give no result."""
    try:
        ranks = sizing.world_size
        found = memory.dry_run(settings, ranks, seconds=seconds, device_bytes=device_bytes)
    except Fault as fault:
        return Choice(sizing.mode, f"auto: {sizing.world_size} ranks; {fault}")
    return Choice(found.mode, found.reason)


def choose_on_node(settings: Settings, sizings: Sequence[Sizing]) -> Choice | None:
    """Choose for the node's ranks, in the launcher; None if there is nothing to choose.

    `sizings` are for the world sizes that an elastic job may have, the smallest first. The smallest
    decides for all, because its ranks need most memory.
    """
    sizing = next((one for one in sizings if is_open(settings, one)), None)
    if sizing is None or settings.dry_run is not None:
        return None
    found = any(any(Path("/dev").glob(pattern)) for pattern in _DEVICE_FILES)
    if not (settings.device_memory or found):
        return None
    return choose(settings, sizing)


def as_variable(choice: Choice) -> dict[str, str]:
    """Return the environment variable that gives `choice` to a rank."""
    return {VARIABLE: json.dumps(choice)}


def agree(
    settings: Settings,
    sizing: Sizing,
    store: Store,
    *,
    rank: int,
    device_bytes: int | None,
    uneven: bool,
) -> Sizing:
    """Return `sizing` in the mode that rank 0 gets from the launcher, or chooses itself.

    The other ranks wait for rank 0, up to the timeout of the store.
    """
    if not is_open(settings, sizing):
        return sizing
    if rank == 0:
        choice = Choice(sizing.mode, sizing.reason)
        given = os.environ.get(VARIABLE)
        if not given and (settings.device_memory or device_bytes):
            seconds = min(SECONDS, settings.collective_timeout / 2)  # the other ranks wait
            choice = choose(settings, sizing, device_bytes=device_bytes, seconds=seconds)
        store.set("mode", given or json.dumps(choice))
    choice = Choice(*json.loads(store.get("mode")))
    changed = settings.model_copy(update={"mode": choice.mode})
    sized = size(changed, sizing.world_size, label=variable, uneven=uneven)
    return replace(sized, reason=choice.reason)
