"""Which settings decide what a run computes: by these a checkpoint is compared before a run goes on.

A figure is reported only under the settings that made it. A new setting decides until it is named here.

    differences(saved=identity(settings), now=identity(changed))    # {"lr": (0.03, 0.0001)}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.settings import Settings

# They matter in a mode of its own numerics only. The other modes give the result of one process, so a
# run may change between them.
DECIDE_IN_MODE = {
    "localsgd": ("local_steps", "local_state", "outer_lr", "outer_momentum"),
    "hogwild": ("processes",),
}

DO_NOT_DECIDE = {
    "mode",  # see DECIDE_IN_MODE
    "epochs",  # more of the same is a longer run
    "steps",
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
}

_LIKE_ONE_PROCESS = "any that equals one process"


def identity(settings: Settings) -> dict[str, Any]:
    """Return what decides the run's result, as values of JSON."""
    in_modes = {name for names in DECIDE_IN_MODE.values() for name in names}
    of_others = in_modes - {*DECIDE_IN_MODE.get(settings.mode, ())}
    values = settings.model_dump(include=Settings.model_fields.keys() - of_others - DO_NOT_DECIDE)
    values["mode"] = settings.mode if settings.mode in DECIDE_IN_MODE else _LIKE_ONE_PROCESS
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


def differences(*, saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what both know and is not the same: then and now, by name."""
    return {
        name: (saved[name], now[name]) for name in now if name in saved and saved[name] != now[name]
    }
