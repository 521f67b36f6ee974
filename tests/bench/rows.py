"""The rows of the benchmark: what is compared with what, and the goal for the ratio."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.bench import commands
from tests.bench.contenders import bare, muster, peer, torchrun
from tests.bench.measure import (
    PEERS,
    SCRIPTS,
    Contender,
    Times,
    each_in_turn,
    in_turn,
    until_line,
)
from tests.bench.peers.turn import FAILED, FIRST

STEPS = 100  # of a turn


@dataclass(frozen=True)
class Row:
    """A row: what it measures, and for each peer the highest ratio that meets the goal.

    `measure(rounds)` returns the times of "muster" and of each peer. A row may have no goal.
    """

    what: str
    measure: Callable[[int], Times]
    goals: Mapping[str, float | None]


def _in_turn(contenders: Mapping[str, Contender]) -> Callable[[int], Times]:
    return lambda rounds: in_turn(contenders, rounds=rounds)


def _saving_large(rounds: int) -> Times:
    """Start new processes in each round.

    Where its weights lie in memory changes the speed of a process for its whole life: in five starts, of
    two processes without checkpoints one took 2 % less to 33 % more than the other.
    """
    large = partial(muster, task=f"{_TASKS}:Large")
    contenders = {"muster": large(checkpoint_steps=STEPS), "without": large()}
    return in_turn(contenders, rounds=rounds, starts=rounds)


def _step(rounds: int) -> Times:
    contenders = {"muster": muster(), "bare": bare(), "bare, same": bare(BENCH_LOOP="same")}
    if PEERS.exists():
        contenders |= {
            "Fabric": peer("fabric"),
            "accelerate": peer("accelerated"),
            "Trainer": peer("transformers_trainer"),
        }
    return in_turn(contenders, rounds=rounds)


def _mode(rounds: int, *, mode: str, ranks: int, net: str = "digits") -> Times:
    """A mode's step compared with torch's own parts; `net` is digits' or the tiny GPT."""
    ours = muster(ranks, mode=mode, **(_GPT if net == "tokens" else {}), **_AS_BARE.get(mode, {}))
    # A turn takes one or two seconds.
    steps = {"BENCH_STEPS": str(800 // ranks) if net == "digits" else "5"}
    same = {"BENCH_MODE": mode, "BENCH_NET": net, **steps}
    contenders = {"muster": replace(ours, env={**ours.env, **steps})}
    if mode == "pp":
        same |= {"BENCH_MICRO": str(_AS_BARE[mode]["micro_batch"])}
    peer_of = partial(torchrun, ranks, script="pipeline" if mode == "pp" else "bare", **same)
    contenders["bare"] = peer_of()
    if mode != "tp":
        contenders["bare, same"] = peer_of(BENCH_LOOP="same")
    return in_turn(contenders, rounds=rounds)


def _start(rounds: int, *, ranks: int) -> Times:
    ours = Contender(
        ("-m", "trainer.launch"), {"PET_NPROC_PER_NODE": str(ranks), "TRAINER_OUT": "run"}
    )
    contenders = {
        "muster": partial(until_line, ours, '"event": "step"'),
        "torchrun": partial(until_line, torchrun(ranks), FIRST),
    }
    return each_in_turn(contenders, rounds=rounds)


def _restart(rounds: int) -> Times:
    """From the traceback of one of two ranks to the first step after the restart."""
    env = {"BENCH_FAIL": "20"}
    ours = muster(2, mode="ddp")
    ours = replace(ours, env={**ours.env, **env, "PET_MAX_RESTARTS": "1"})
    contenders = {"muster": ours, "torchrun": torchrun(2, **env)}
    measured = {
        name: partial(until_line, one, FIRST, after=FAILED) for name, one in contenders.items()
    }
    return each_in_turn(measured, rounds=rounds)


def _script(
    rounds: int, *, script: str, what: str, peers: Mapping[str, str], steps: int, workers: int = 0
) -> Times:
    """What `script` does for `what`, with the trainer's parts and with those of each peer."""
    path = str(SCRIPTS / f"{script}.py")
    env = {"BENCH_STEPS": str(steps), "BENCH_WORKERS": str(workers)}
    whose = {"muster": "muster", **peers}
    # A disk's own times differ by more than 100 %.
    within = "/dev/shm" if script == "saving" and Path("/dev/shm").is_dir() else None
    contenders = {
        name: Contender((path, what, one), env, reads_ahead=workers > 0, within=within)
        for name, one in whose.items()
    }
    if what == "load":  # a process does it once
        return in_turn(contenders, rounds=rounds, starts=rounds, warm_up=0)
    return in_turn(contenders, rounds=rounds)


def _evaluation(rounds: int) -> Times:
    path, steps = str(SCRIPTS / "evaluating.py"), {"BENCH_STEPS": "20"}
    ours = muster(task="digits", steps=1)
    contenders = {
        "muster": replace(ours, arguments=(path, "muster"), env={**ours.env, **steps}),
        "bare": Contender((path, "bare"), steps),
        "bare, same": Contender((path, "bare"), {"BENCH_LOOP": "same", **steps}),
    }
    return in_turn(contenders, rounds=rounds)


_TASKS = "tests.bench.peers.muster_task"
_GPT = {"task": f"{_TASKS}:Gpt"}
# What the bare scripts do.
_AS_BARE: dict[str, dict[str, object]] = {
    "pp": {"pipeline_schedule": "1f1b", "micro_batch": 8},
    "tp": {"sequence_parallel": "false"},
}
_LOADER = {"DataLoader": "peer"}
_SAVERS = {"torch.save": "torch", "DCP async": "dcp"}


def _mode_row(mode: str, ranks: int, *, net: str = "digits") -> Row:
    what = {"digits": "digits' net", "tokens": "the tiny GPT"}[net]
    return Row(
        f"a step of {what} with {mode} on {ranks} ranks, processor time of all",
        partial(_mode, mode=mode, ranks=ranks, net=net),
        {"bare": 1.03, "bare, same": 1.03},
    )


def _scaling_row(ranks: int) -> Row:
    """The same global batch with ddp on more ranks, compared with one rank and DataParallel."""
    contenders = {
        "muster": muster(ranks, mode="ddp", **_GPT),
        "one rank": muster(1, mode="single", **_GPT),
        "dp": muster(1, mode="dp", **_GPT),
    }
    fewer = {
        name: replace(one, env={**one.env, "BENCH_STEPS": "5"}) for name, one in contenders.items()
    }
    return Row(
        f"a step of the tiny GPT with ddp on {ranks} ranks, each contender with the same global batch",
        _in_turn(fewer),
        {"one rank": None, "dp": None},
    )


def _start_row(who: str, ranks: int) -> Row:
    what = f"{who}, from the command to the first step, all processes"
    return Row(what, partial(_start, ranks=ranks), {"torchrun": 0.5})


ROWS = {
    "step": Row(
        "a step of digits' net, batch 32, one thread, guards and metrics on",
        _step,
        {"bare": 1.03, "bare, same": 1.03, "Fabric": 1, "accelerate": 1, "Trainer": 1},
    ),
    "compiled": Row(
        "a step of digits' net with TRAINER_COMPILE=step",
        _in_turn(
            {
                "muster": muster(task=f"{_TASKS}:ByEvents", compile="step"),
                "bare": bare(),
                "bare, compiled": bare(BENCH_COMPILE="yes"),
                "not compiled": muster(task=f"{_TASKS}:ByEvents"),
            }
        ),
        {"bare": 0.7, "bare, compiled": 1, "not compiled": 1},
    ),
    "events": Row(
        "the same with step events as by default, compared with only the first and the last",
        _in_turn({"muster": muster(), "none": muster(log_steps=10**7)}),
        {"none": 1.01},
    ),
    "profile": Row(
        "the same after profiled steps, compared with a run that profiles none",
        _in_turn({"muster": muster(profile="1:5"), "none": muster()}),
        {"none": 1.01},
    ),
    "accumulation": Row(
        "a step of digits' net in eight micro-batches of four samples",
        _in_turn(
            {
                "muster": muster(micro_batch=4),
                "bare": bare(BENCH_MICRO="4"),
                "bare, same": bare(BENCH_MICRO="4", BENCH_LOOP="same"),
            }
        ),
        {"bare": 1.03, "bare, same": 1.03},
    ),
    "ddp": _mode_row("ddp", 2),
    "ddp-4": _mode_row("ddp", 4),
    "fsdp": _mode_row("fsdp", 2, net="tokens"),
    "fsdp-4": _mode_row("fsdp", 4, net="tokens"),
    "tp": _mode_row("tp", 2, net="tokens"),
    "tp-4": _mode_row("tp", 4, net="tokens"),
    "pp": _mode_row("pp", 2, net="tokens"),
    "pp-4": _mode_row("pp", 4, net="tokens"),
    "scaling": _scaling_row(2),
    "scaling-4": _scaling_row(4),
    "evaluation": Row(
        "an evaluation of digits' test set, compared with a loop that counts correct samples",
        _evaluation,
        {"bare": 1.05, "bare, same": 1.05},
    ),
    "tokens": Row(
        "batches of 12 windows of 1,024 tokens from a file",
        partial(_script, script="reading", what="tokens", peers={"get_batch": "peer"}, steps=200),
        {"get_batch": 1},
    ),
    "memory": Row(
        "batches of 128 images of 28 x 28 from memory, normalised, without loader processes",
        partial(_script, script="reading", what="memory", peers=_LOADER, steps=10),
        {"DataLoader": 0.48},
    ),
    "jpeg": Row(
        "batches of 32 photographs of 500 x 375, cut and flipped, without loader processes",
        partial(_script, script="reading", what="jpeg", peers=_LOADER, steps=2),
        {"DataLoader": 0.77},
    ),
    "jpeg-2": Row(
        "the same with two loader processes",
        partial(_script, script="reading", what="jpeg", peers=_LOADER, steps=20, workers=2),
        {"DataLoader": 0.77},
    ),
    "save": Row(
        "a checkpoint of 100 MB, until it is written, into memory",
        partial(_script, script="saving", what="save", peers=_SAVERS, steps=1),
        {"torch.save": 1, "DCP async": 1},
    ),
    "blocked": Row(
        "the same, until training continues",
        partial(_script, script="saving", what="blocked", peers=_SAVERS, steps=1),
        {"torch.save": 1, "DCP async": 1},
    ),
    "saving": Row(
        "steps of digits' net with checkpoints as by default, compared with steps without",
        _in_turn({"muster": muster(checkpoint_steps=STEPS), "without": muster()}),
        {"without": 1.02},
    ),
    "saving-100": Row(
        "the same for a net of 13 M parameters, with checkpoints of 100 MB",
        _saving_large,
        {"without": 1.02},
    ),
    "load": Row(
        "loading 100 MB in a process that has just started",
        partial(_script, script="saving", what="load", peers={"torch.load": "torch"}, steps=1),
        {"torch.load": 1},
    ),
    "start-1": _start_row("one rank", 1),
    "start-2": _start_row("two ranks", 2),
    "start-8": _start_row("eight ranks", 8),
    "restart": Row(
        "two ranks, from the failure of one to the first step after the restart, all processes",
        _restart,
        {"torchrun": 0.2},
    ),
    "render": Row(
        "a job file to a manifest, the whole process",
        commands.render,
        {"TorchX": 0.6},
    ),
    "export": Row(
        "50 MB of weights of a checkpoint to a safetensors file, the whole process",
        commands.export,
        {"torch.load": 1.05},
    ),
    "status": Row(
        "the status of a job of 1,000 pods, the whole process",
        commands.status,
        {"kubectl": 1.5},
    ),
}
