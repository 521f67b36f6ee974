"""The rows of the benchmark: what is compared with what, and how much of it is the goal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.bench.measure import (
    PEERS,
    SCRIPTS,
    Contender,
    Times,
    in_turn,
)

# Long enough to be measured, short enough for many rounds.
STEPS = 100


@dataclass(frozen=True)
class Row:
    """A row: what it measures, and for each peer the ratio that muster is to stay below.

    `measure(rounds)` returns the times of "muster" and of each peer.
    """

    what: str
    measure: Callable[[int], Times]
    goals: Mapping[str, float]
    rounds: int = 15


def _muster(ranks: int = 1, **settings: object) -> Contender:
    """Return the trainer with all that is on by default, but checkpoints: they are a row of their own."""
    default = {"task": "tests.bench.peers.muster_task:Task", "steps": 10**7, "checkpoint_steps": 0}
    variables = {
        f"TRAINER_{name.upper()}": str(value)
        for name, value in (default | {"eval_steps": 0, "out": "run"} | settings).items()
    }
    module = ("-m", "trainer") if ranks == 1 else ("-m", "trainer.launch")
    return Contender(module, variables | {"PET_NPROC_PER_NODE": str(ranks)}, ranks)


def _peer(name: str, **env: str) -> Contender:
    return Contender((str(SCRIPTS / f"{name}.py"),), env, python=PEERS)


def _bare(ranks: int = 1, **env: str) -> Contender:
    script = str(SCRIPTS / "bare.py")
    if ranks == 1:
        return Contender((script,), env)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return Contender((*torchrun, script), env, ranks)


def _step(rounds: int) -> Times:
    contenders = {"muster": _muster(), "bare": _bare(), "bare, same": _bare(BENCH_LOOP="same")}
    if PEERS.exists():
        contenders |= {
            "Fabric": _peer("fabric"),
            "accelerate": _peer("accelerated"),
            "Trainer": _peer("transformers_trainer"),
        }
    return in_turn(contenders, rounds=rounds)


ROWS = {
    "step": Row(
        "a step of digits' net, batch 32, one thread, guards and metrics on",
        _step,
        {"bare": 1.03, "bare, same": 1.03, "Fabric": 1, "accelerate": 1, "Trainer": 1},
    ),
}
