"""The ranks come together before the process group is made, so that who does not come is named.

A rank that hangs while it starts, or was never started, would have the others wait in the group's own
store for a key that tells nobody anything.

    await_all(store, rank=0, world_size=8, seconds=300)
"""

import os
from datetime import timedelta

import torch.distributed as dist

from trainer.config.exits import Exit, Fault

_TOLD = 3  # ranks that are named


def await_all(store: dist.Store, *, rank: int, world_size: int, seconds: int) -> None:
    """Wait until every rank has come here. Raises Fault(69) after `seconds`, naming who has not."""
    roll = dist.PrefixStore("arrival", store)
    roll.set(str(rank), "")
    if roll.add("count", 1) == world_size:
        roll.set("all", "")
    try:
        roll.wait(["all"], timedelta(seconds=seconds))
    except dist.DistStoreError:
        missing = [number for number in range(world_size) if not roll.check([str(number)])]
        if not missing:
            return  # the last one came at the last moment
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        names = ", ".join(f"rank {one} (node {one // per_node})" for one in missing[:_TOLD])
        more = f" and {len(missing) - _TOLD} more" if len(missing) > _TOLD else ""
        raise Fault(
            Exit.PEER,
            f"{names}{more} did not come to the start within {seconds} s "
            "(TRAINER_COLLECTIVE_TIMEOUT): never started, stopped, or stuck before",
        ) from None
