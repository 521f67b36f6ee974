"""Which settings decide what a run computes: by these a checkpoint is compared before a run goes on.

A figure is reported only under the settings that made it. Every setting is in one of the three groups;
tests/unit/trainer/config/test_identity.py checks that.

    differences(saved=identity(settings), now=identity(changed))    # {"lr": (0.03, 0.0001)}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.settings import Settings

DECIDE = (
    "task",
    "global_batch",
    "optimizer",
    "lr",
    "lr_scale",
    "lr_base_batch",
    "momentum",
    "weight_decay",
    "schedule",
    "warmup_steps",
    "clip_norm",
    "precision",
    "ema_decay",
    "comm_hook",
    "sync_batchnorm",
    "seed",
    "init",
    "init_skip",
    "freeze",
    "data",
    "model",
    "image_size",
    "bptt",
)

# They matter in a mode of its own numerics only. The other modes give the result of one process, so a
# run may change between them.
DECIDE_IN_MODE = {
    "localsgd": ("local_steps", "local_state", "outer_lr", "outer_momentum"),
    "hogwild": ("processes",),
}

# More of the same is a longer run.
LENGTH = ("epochs", "steps")

DO_NOT_DECIDE = (
    "mode",  # see DECIDE_IN_MODE
    "mesh",
    "micro_batch",
    "activation_checkpointing",
    "compile",
    "channels_last",
    "fingerprint_steps",
    "nonfinite_allowance",
    "bucket_mb",
    "static_graph",
    "pipeline_schedule",
    "stages",
    "reshard",
    "sequence_parallel",
    "loss_parallel",
    "cpu_offload",
    "workers",
    "download",
    "prefetch",
    "bad_samples",
    "out",
    "resume",
    "checkpoint_steps",
    "checkpoint_minutes",
    "checkpoints",
    "checkpoint_keep",
    "checkpoint_keep_every",
    "checkpoint_keep_best",
    "checkpoint_timeout",
    "eval_steps",
    "dry_run",
    "device_memory",
    "ledger",
    "log",
    "log_steps",
    "metrics_port",
    "tensorboard",
    "tracker",
    "profile",
    "preflight",
    "devices",
    "rendezvous_timeout",
    "last_call",
    "peer_timeout",
    "peer_losses",
    "collective_timeout",
    "health",
    "health_timeout",
)

_LIKE_ONE_PROCESS = "any that equals one process"


def identity(settings: Settings) -> dict[str, Any]:
    """Return what decides the run's result, as values of JSON."""
    own = DECIDE_IN_MODE.get(settings.mode)
    values = {name: getattr(settings, name) for name in (*DECIDE, *(own or ()))}
    values["mode"] = _LIKE_ONE_PROCESS if own is None else settings.mode
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


def differences(*, saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what both know and is not the same: then and now, by name."""
    return {
        name: (saved[name], now[name]) for name in now if name in saved and saved[name] != now[name]
    }
