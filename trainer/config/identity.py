"""Which settings decide a run's result. They are compared with a checkpoint's before a run resumes.

So a result is reported with the settings that made it. A new setting decides until it is listed here.

    differences(saved=identity(settings), now=identity(changed))    # {"lr": (0.03, 0.0001)}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.settings import Settings

# They decide only in these modes, whose results differ from one process. All other modes give the result
# of one process, so a run may change between them.
DECIDE_IN_MODE = {
    "localsgd": ("local_steps", "local_state", "outer_lr", "outer_momentum"),
    "hogwild": ("processes",),
}

DO_NOT_DECIDE = {
    "mode",  # see DECIDE_IN_MODE
    "epochs",  # more epochs make a longer run, not another one
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
    "find_unused_parameters",
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

# All nodes of a run need the same settings, except these: places, and what a machine can do.
MAY_DIFFER_BY_NODE = {
    "data",
    "init",
    "workers",
    "download",
    "prefetch",
    "out",
    "checkpoints",
    "checkpoint_timeout",
    "device_memory",
    "log",
    "metrics_port",
    "tensorboard",
    "tracker",
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
    """Return the settings that decide the run's result, as JSON values."""
    in_modes = {name for names in DECIDE_IN_MODE.values() for name in names}
    of_others = in_modes - {*DECIDE_IN_MODE.get(settings.mode, ())}
    values = settings.model_dump(include=Settings.model_fields.keys() - of_others - DO_NOT_DECIDE)
    values["mode"] = settings.mode if settings.mode in DECIDE_IN_MODE else _LIKE_ONE_PROCESS
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


def differences(*, saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what is in both and differs, by name: the saved value and the one of now."""
    return {
        name: (saved[name], now[name]) for name in now if name in saved and saved[name] != now[name]
    }
