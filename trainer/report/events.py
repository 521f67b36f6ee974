"""The types of an event and of the function that reports it, and what each event holds.

report("step", step=1, loss=2.3)

scores(event)     # of an eval event: {"accuracy": 0.98}
"""

import math
from collections.abc import Callable
from typing import Any

from trainer.config.lines import EVAL_FIELDS

Event = dict[str, Any]
Report = Callable[..., None]

# The field of an event, and the curve that shows it; an evaluation adds eval/METRIC.
_CURVES = {
    "step": {
        "loss": "train/loss",
        "grad_norm": "train/grad_norm",
        "lr": "train/learning_rate",
        "samples_per_s": "train/samples_per_second",
        "tokens_per_s": "train/tokens_per_second",
        "flops_per_s": "train/flops_per_second",
        "peak_share": "train/peak_share",
        "epoch": "train/epoch",
    },
    "eval": {"loss": "eval/loss"},
    "checkpoint": {
        "blocked_s": "checkpoint/blocked_seconds",
        "seconds": "checkpoint/seconds",
        "bytes": "checkpoint/bytes",
    },
}

# Each event's fields beside `event` and `time`. Times: seconds since the epoch; durations: seconds.
FIELDS: dict[str, dict[str, str]] = {
    "launch": {
        "task, mode, why": "what is trained, in which mode, and why in that",
        "program, command": "of a program of one's own: its name; what the launcher was given",
        "nodes, world_size, mesh, device, backend, master, threads": "on what, and where the ranks meet",
        "parameters, samples": "of the model, on all ranks; of the training set",
        "global_batch, micro, accumulation": "samples of a step, of a forward pass; passes of a step",
        "stages, schedule, devices": "of a pipeline",
        "compiled_step": "whether the whole step is compiled code, as TRAINER_COMPILE=step asks",
        "precision, lr, lr_why": "learning rate at its peak, and why",
        "preflight": "figures of the checks before the first step",
        "torch, python, host, out": "versions, rank 0's host, run folder",
        "code_sha256, code_commit": "hash of the code that the job carried; git's commit of that, or of "
        "the current folder, with -dirty if files had changed since",
        "began, attempt": "when rank 0's process began; which attempt of the run this is",
        "settings": "the variables that repeat the run; secrets of a task's own settings are masked",
    },
    "step": {
        "step, steps, epoch": "optimiser steps done, of how many; epoch from 0 on",
        "loss, grad_norm, lr": "mean loss of the global batch; norm before clipping; learning rate",
        "samples, samples_per_s": "training samples used; per second since the step event before",
        "tokens_per_s": "where a sample is a sequence of tokens",
        "flops_per_s": "floating-point operations of the model, forward and backward, on all ranks",
        "peak_share": "those, as a share of the devices' peak, where it is known",
        "seconds": "of the steps since the step event before, without saves and evaluations",
        "data_s": "of those, rank 0's wait for samples",
        "memory": "bytes that rank 0 holds, of its device or of the host",
        "goodput, wall_s": "share of new steps in the wall time of all attempts; that time",
        "spent_s": "seconds of it by cause",
    },
    "eval": {
        "step, loss, samples": "after which step; mean loss over the test set; its size",
        "metric": "name of the first of the task's scores",
        "METRIC": "each score under its name",
        "seconds": "that it took",
    },
    "sample": {
        "step, seconds": "after which step the task's `sample` made it; how long that took",
        "prompt, tokens, text": "of the task tokens: what it began with, what the model added; both",
        "...": "what a task of one's own returns",
    },
    "checkpoint": {
        "action, step, path": "saved, refused or resumed; after which step; where",
        "blocked_s, seconds, bytes": "how long the training waited, how long it took, its size",
        "message": "why it was refused",
    },
    "fault": {
        "kind, step": "bad_sample, hang, nonfinite, rolled_back, stopped or straggler",
        "...": "what is known of it",
    },
    "profile": {
        "first, last, seconds, path": "the steps, how long they took, and where the traces are",
        "communication_s": "of rank 0's operations, those of the collectives; they overlap others",
        "operations": "the ten costliest of rank 0: name, seconds without those within, calls",
    },
    "usage": {
        "step, ranks": "a list, with a part for each rank:",
        "rank, host, cpu, busy": "cores in use; share of time that the device is busy",
        "memory, memory_of": "bytes held, of its device or of the host; of how many",
        "own_s, wait_s": "seconds per step of its own work; of communication, waits for ranks included",
        "import_s, join_s": "seconds since the usage event before, by a look each 0.05 s: imports, "
        "which a forked rank has from its launcher; joining the others",
        "start_s, preflight_s": "data set and model; checks of the machine",
        "data_s, compute_s, communication_s": "waits for samples; own work in steps; collectives",
        "device_s, checkpoint_s, evaluation_s": "waits for a GPU, for its collectives too; saving and "
        "resuming; evaluations",
        "slowest_s, middle_s": "own_s of the slowest rank; their median",
        "stragglers_s": "how long the middle rank waited for slower ones since the usage event before",
    },
    "summary": {
        "steps, METRIC, samples_per_s, seconds": "as the last steps and the last evaluation had them",
        "skipped_steps, checkpoint, mode, world_size, peak_memory": "peak of the rank with most",
        "goodput, wall_s, spent_s": "as in a step",
    },
    "error": {"code, message": "exit code, and the reason in one line"},
    "attempt": {
        "action, host, node": "launched, waiting, started, failed or ended; written by each launcher",
        "began": "launched: when the launcher's process began",
        "nodes, world_size, first_rank, restarts": "started: of the round",
        "ranks": "failed: rank, exit, message, time, traceback or last_lines of each, the cause first",
        "exit, reason": "ended: the node's exit code",
    },
}


def is_number(value: object) -> bool:
    """Return whether it is a figure that any run has: finite, and within what a float holds."""
    return (
        isinstance(value, int | float)
        and abs(value) < 1e300  # first, since a whole number may be too large for isfinite
        and math.isfinite(value)
    )


def scores(event: Event) -> dict[str, float]:
    """Return the scores of an eval event by name."""
    return {name: value for name, value in event.items() if name not in EVAL_FIELDS}


def curves(event: Event) -> dict[str, float]:
    """Return the points of an event by the name of their curves, for TensorBoard and trackers."""
    found = _CURVES.get(event["event"], {})
    if event["event"] == "eval":
        found = found | {name: f"eval/{name}" for name in scores(event)}
    return {curve: event[name] for name, curve in found.items() if event.get(name) is not None}
