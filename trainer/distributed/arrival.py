"""Wait for all ranks before the process group is created, so that an error can name a missing rank.

Otherwise, if a rank hangs at its start or was never started, the others would wait in
init_process_group, whose error does not say which rank is missing.

    await_all(store, rank=0, world_size=8, seconds=300)
"""

import os
from datetime import timedelta

import torch.distributed as dist

from trainer.config.exits import Exit, Fault

_NAMED = 3  # ranks named in a message


def await_all(store: dist.Store, *, rank: int, world_size: int, seconds: int) -> None:
    """Wait until every rank has called this. Raises Fault(69) after `seconds`, naming missing ranks."""
    arrived = dist.PrefixStore("arrival", store)
    arrived.set(str(rank), "")
    if arrived.add("count", 1) == world_size:
        arrived.set("all", "")
    try:
        arrived.wait(["all"], timedelta(seconds=seconds))
    except dist.DistStoreError:
        missing = [number for number in range(world_size) if not arrived.check([str(number)])]
        if not missing:
            return  # the last rank arrived after the wait had ended
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        names = ", ".join(f"rank {one} (node {one // per_node})" for one in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise Fault(
            Exit.PEER,
            f"{names}{more} did not join within {seconds} s (TRAINER_COLLECTIVE_TIMEOUT): never "
            "started, ended, or hangs",
        ) from None
