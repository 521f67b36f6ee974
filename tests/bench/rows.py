"""The rows of the benchmark: what is compared with what, and how much of it is the goal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tests.bench.measure import (
    PEERS,
    SCRIPTS,
    Contender,
    Times,
    each_in_turn,
    in_turn,
    to_end,
    until_line,
)
from tests.conftest import ROOT

STEPS = 100  # of a turn
TORCHX = ROOT / "build" / "torchx" / "bin"


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
    """Return the trainer with all that is on by default; checkpoints have a row of their own."""
    default = {"task": "tests.bench.peers.muster_task:Task", "steps": 10**7, "checkpoint_steps": 0}
    variables = {
        f"TRAINER_{name.upper()}": str(value)
        for name, value in (default | {"eval_steps": 0, "out": "run"} | settings).items()
    }
    module = ("-m", "trainer") if ranks == 1 else ("-m", "trainer.launch")
    return Contender(module, variables | {"PET_NPROC_PER_NODE": str(ranks)}, ranks)


def _peer(name: str, **env: str) -> Contender:
    return Contender((str(SCRIPTS / f"{name}.py"),), env, python=PEERS)


def _bare(**env: str) -> Contender:
    return Contender((str(SCRIPTS / "bare.py"),), env)


def _torchrun(ranks: int, **env: str) -> Contender:
    options = ("--standalone", "--nproc-per-node", str(ranks))
    script = str(SCRIPTS / "bare.py")
    return Contender(("-m", "torch.distributed.run", *options, script), env, ranks)


def _step(rounds: int) -> Times:
    contenders = {"muster": _muster(), "bare": _bare(), "bare, same": _bare(BENCH_LOOP="same")}
    if PEERS.exists():
        contenders |= {
            "Fabric": _peer("fabric"),
            "accelerate": _peer("accelerated"),
            "Trainer": _peer("transformers_trainer"),
        }
    return in_turn(contenders, rounds=rounds)


def _accumulation(rounds: int) -> Times:
    micro = 4
    parts = _muster(micro_batch=micro)
    # Its task counts micro-batches.
    ours = replace(parts, env={**parts.env, "BENCH_STEPS": str(STEPS * 32 // micro)})
    loops = {
        "bare": _bare(BENCH_MICRO=str(micro)),
        "bare, same": _bare(BENCH_MICRO=str(micro), BENCH_LOOP="same"),
    }
    return in_turn({"muster": ours, **loops}, rounds=rounds)


def _ddp(rounds: int) -> Times:
    contenders = {
        "muster": _muster(2, mode="ddp"),
        "bare": _torchrun(2),
        "bare, same": _torchrun(2, BENCH_LOOP="same"),
    }
    return in_turn(contenders, rounds=rounds)


def _start(rounds: int, *, ranks: int) -> Times:
    ours = Contender(
        ("-m", "trainer.launch"), {"PET_NPROC_PER_NODE": str(ranks), "TRAINER_OUT": "run"}
    )
    contenders = {
        "muster": partial(until_line, ours, '"event": "step"'),
        "torchrun": partial(until_line, _torchrun(ranks), "first step"),
    }
    return each_in_turn(contenders, rounds=rounds)


def _render(rounds: int) -> Times:
    """Two nodes with eight ranks, here and by TorchX's dry run."""
    sizes = ("nodes=2", "procsPerNode=8", "trainer.globalBatch=64")
    sets = [part for one in sizes for part in ("--set", one)]
    job = str(ROOT / "k8s" / "jobs" / "02-digits-ddp.yaml")
    contenders = {"muster": partial(to_end, Contender((str(ROOT / "render.py"), job, *sets)))}
    if TORCHX.exists():
        options = ("run", "--dryrun", "--workspace=", "-s", "kubernetes", "-cfg", "queue=q")
        what = ("dist.ddp", "-j", "2x8", "--image", "a:1", "--script", "render.py")
        theirs = Contender((str(TORCHX / "torchx"), *options, *what), python=TORCHX / "python")
        contenders["TorchX"] = partial(to_end, theirs)
    return each_in_turn(contenders, rounds=rounds)


ROWS = {
    "step": Row(
        "a step of digits' net, batch 32, one thread, guards and metrics on",
        _step,
        {"bare": 1.03, "bare, same": 1.03, "Fabric": 1, "accelerate": 1, "Trainer": 1},
    ),
    "accumulation": Row(
        "the same in eight micro-batches of four",
        _accumulation,
        {"bare": 1.03, "bare, same": 1.03},
    ),
    "ddp": Row(
        "the same on two ranks, processor time of both",
        _ddp,
        {"bare": 1.03, "bare, same": 1.03},
    ),
    "start-1": Row(
        "one rank, from the command to its first step, all processes",
        partial(_start, ranks=1),
        {"torchrun": 0.5},
        rounds=5,
    ),
    "start-2": Row(
        "two ranks, from the command to their first step, all processes",
        partial(_start, ranks=2),
        {"torchrun": 0.5},
        rounds=5,
    ),
    "render": Row(
        "a job file to a manifest, the whole process",
        _render,
        {"TorchX": 0.6},
        rounds=9,
    ),
}
