"""The types of an event and of the function that reports it, and the fields of each event.

report("step", step=1, loss=2.3)

scores(event)     # of an eval event: {"accuracy": 0.98}
"""

import math
from collections.abc import Callable
from typing import Any

from trainer.config.lines import EVAL_FIELDS

Event = dict[str, Any]
Report = Callable[..., None]

# The fields of an event that become curves, with the curve of each; an evaluation adds eval/METRIC.
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

# Each event's fields, without `event` and `time`. Times: seconds since the epoch; durations: seconds.
FIELDS: dict[str, dict[str, str]] = {
    "launch": {
        "task, mode, why": "what is trained, in which mode, and why in this mode",
        "program, command": "only of your own program: its name; the launcher's arguments",
        "nodes, world_size, mesh, device, backend, master, threads": "`master`: where the ranks meet; "
        "`threads`: of each rank",
        "parameters, samples": "number of parameters, on all ranks; size of the training set",
        "global_batch, micro, accumulation": "samples of a step; of a micro-batch; forward passes of a "
        "rank in a step",
        "stages, schedule, devices": "only of a pipeline",
        "compiled_step": "whether the whole step is compiled (TRAINER_COMPILE=step)",
        "precision, lr, lr_why": "`lr`: learning rate at its peak; `lr_why`: why this value",
        "preflight": "figures of the checks before the first step",
        "torch, python, host, out": "versions, rank 0's host, run folder",
        "code_sha256, code_commit": "hash of the job's code; its git commit, else the current folder's; "
        "`-dirty`: files have changed",
        "began, attempt": "when rank 0's process started; number of the attempt, from 1 on",
        "settings": "the variables that repeat the run; secrets of your own task are masked",
    },
    "step": {
        "step, steps, epoch": "optimiser steps done; steps in all; epoch, from 0 on",
        "loss, grad_norm, lr": "mean loss of the global batch; norm before clipping; learning rate",
        "samples, samples_per_s": "training samples used; per second since the previous step event",
        "tokens_per_s": "only if a sample is a sequence of tokens",
        "flops_per_s": "floating-point operations of the model, forward and backward, on all ranks",
        "peak_share": "`flops_per_s` as a share of the devices' peak, if that is known",
        "seconds": "time of the steps since the previous step event, without saves and evaluations",
        "data_s": "part of `seconds` in which rank 0 waited for samples",
        "memory": "bytes that rank 0 holds, on its device or the host",
        "goodput, wall_s": "share of `wall_s` that went into new steps; wall time of all attempts",
        "spent_s": "seconds of the wall time by cause",
    },
    "eval": {
        "step, loss, samples": "step; mean loss over the test set; size of the test set",
        "metric": "name of the task's first score",
        "METRIC": "each score under its name",
        "seconds": "how long it took",
    },
    "sample": {
        "step, seconds": "step after which the task's `sample` ran; how long it took",
        "prompt, tokens, text": "of the task `tokens`: first tokens; those that the model added; both "
        "as text",
        "...": "what your own task returns",
    },
    "checkpoint": {
        "action, step, path": "saved, refused or resumed; step; where",
        "blocked_s, seconds, bytes": "how long training waited; how long it took; size",
        "message": "why it was refused",
    },
    "fault": {
        "kind, step": "bad_sample, hang, nonfinite, rolled_back, stopped or straggler",
        "...": "details of this kind",
    },
    "profile": {
        "first, last, seconds, path": "first and last step; how long they took; folder of the traces",
        "communication_s": "rank 0's time in collectives; it overlaps other operations",
        "operations": "rank 0's ten costliest: name, seconds without nested operations, calls",
    },
    "usage": {
        "step, ranks": "`ranks`: a list, with these fields for each rank:",
        "rank, host, cpu, busy": "`cpu`: cores in use; `busy`: share of the time that the device works",
        "memory, memory_of": "bytes held, of the device or the host; size of the device's memory",
        "own_s, wait_s": "seconds per step: own work; collectives, with waits for slower ranks",
        "import_s, join_s": "seconds since the previous usage event, sampled every 0.05 s: imports (a "
        "forked rank inherits them); joining the process group",
        "start_s, preflight_s": "likewise: data set and model; checks of the machine",
        "data_s, compute_s, communication_s": "likewise: waits for samples; own work in steps; "
        "collectives",
        "device_s, checkpoint_s, evaluation_s": "likewise: waits for the GPU and its collectives; "
        "saving and resuming; evaluations",
        "slowest_s, middle_s": "of the event: `own_s` of the slowest rank; median of all ranks",
        "stragglers_s": "of the event: how long the median rank waited for slower ranks",
    },
    "summary": {
        "steps, METRIC, samples_per_s, seconds": "`samples_per_s`, `seconds`: of the last "
        "attempt; METRIC: of the last evaluation",
        "skipped_steps, checkpoint, mode, world_size, peak_memory": "`peak_memory`: of the rank "
        "that used most",
        "goodput, wall_s, spent_s": "as in a step event",
    },
    "error": {"code, message": "exit code, and the reason in one line"},
    "attempt": {
        "action, host, node": "launched, waiting, started, failed or ended; each launcher writes them",
        "began": "launched: when the launcher's process started",
        "nodes, world_size, first_rank, restarts": "started: of the round",
        "ranks": "failed: exit, message, time, traceback or last_lines of each rank, the cause "
        "first",
        "exit, reason": "ended: the node's exit code, and why",
    },
}


def is_number(value: object) -> bool:
    """Return whether a value is a finite number that a float can hold."""
    return (
        isinstance(value, int | float)
        and abs(value) < 1e300  # first, because an integer may be too large for isfinite
        and math.isfinite(value)
    )


def scores(event: Event) -> dict[str, float]:
    """Return the scores of an eval event by name."""
    return {name: value for name, value in event.items() if name not in EVAL_FIELDS}


def curves(event: Event) -> dict[str, float]:
    """Return an event's points by the names of their curves, for TensorBoard and trackers."""
    found = _CURVES.get(event["event"], {})
    if event["event"] == "eval":
        found = found | {name: f"eval/{name}" for name in scores(event)}
    return {curve: event[name] for name, curve in found.items() if event.get(name) is not None}
