"""How many micro-batches' activations a rank of the pipeline keeps at once, by its schedule.

The orders are those that torch.distributed.pipelining runs; a unit test compares.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from trainer.plan.schedules import SCHEDULES, stages_of

# A stage, and whether what it keeps of one more micro-batch comes (1) or goes (-1).
Event = tuple[int, int]


def events(name: str, rank: int, ranks: int, *, stages: int, count: int) -> Iterator[Event]:
    """Yield what comes and goes on rank `rank` of the pipeline in a step of `count` micro-batches.

    What a stage keeps goes with the gradients of its weights, which zero-bubble schedules put off.
    """
    held = stages_of(name, rank, ranks, stages)
    if SCHEDULES[name].v:
        return _v_shaped(held, rank, ranks, count)
    rounds = max(1, count // ranks) if SCHEDULES[name].rounds else 1
    together = count // rounds
    turns = [stage for _ in range(rounds) for stage in held for _ in range(together)]
    back = [stage for _ in range(rounds) for stage in reversed(held) for _ in range(together)]
    after = ranks - 1 - rank
    ahead = {
        "gpipe": len(turns),
        "1f1b": after + 1,
        # one more than the warm-up: a pass forward comes before the first one back
        "interleaved-1f1b": (len(held) - 1) * together + 2 * after + 1,
        # whose weights' gradients come as many passes later as the rank has ranks before it
        "interleaved-zb": (len(held) - 1) * together + after + 1 + rank,
    }[name]
    return _alternating(turns, back, min(ahead, len(turns)))


def _alternating(forward: list[int], back: list[int], ahead: int) -> Iterator[Event]:
    """Go `ahead` passes forward, then by turns one back and one forward."""
    yield from ((stage, 1) for stage in forward[:ahead])
    for stage, following in zip_longest(back, forward[ahead:]):
        yield stage, -1
        if following is not None:
            yield following, 1


def _v_shaped(held: list[int], rank: int, ranks: int, count: int) -> Iterator[Event]:
    """Go down the first stages, up the last ones, and then by turns (Qi et al., 2024)."""
    down, up = held
    total = max(2 * ranks - 1, count)  # torch plans that many, and leaves out those there are not
    done: Counter[Event] = Counter()
    plan = [(down, 1)] * (2 * (ranks - rank) - 1)
    plan += [(up, 1), (down, 1)] * rank
    plan += [(up, 1), (up, -1)] * (ranks - rank)
    left = total - (2 * ranks - rank - 1)  # to go down
    plan += [(down, 1), (down, -1), (up, 1), (up, -1)] * left
    plan += [(down, -1), (up, 1), (up, -1)] * (ranks - rank - 1)
    plan += [(down, -1)] * ranks + [(up, -1)] * rank
    for event in plan:
        if done[event] < count:
            yield event
        done[event] += 1
