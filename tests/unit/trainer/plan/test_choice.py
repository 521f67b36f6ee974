"""The mode that `auto` chooses, by the memory of a device."""

import pytest

from trainer.config.environment import parse, variable
from trainer.plan.choice import settle
from trainer.plan.costs import pieces_of
from trainer.plan.memory import estimate
from trainer.plan.sizing import Sizing, size


def chosen(gib: float | None, world_size: int = 8, **settings: str) -> Sizing:
    memory = {} if gib is None else {"device_memory": str(gib)}
    common = {"task": "charlm-gpt", "optimizer": "adamw", "global_batch": "8"}
    return settle(parse(common | memory | settings, label=variable), world_size, label=variable)


# A replica holds 7.2 MiB and 1.5 MiB of activations and buffers, AdamW's state is half of it.
@pytest.mark.parametrize(
    ("mebibytes", "mode"), [(81920, "ddp"), (12, "ddp"), (9, "ddp-zero1"), (5, "fsdp"), (1, "fsdp")]
)
def test_auto_takes_the_simplest_mode_that_fits(mebibytes: int, mode: str) -> None:
    sizing = chosen(mebibytes / 1024)
    assert sizing.mode == mode
    assert f"{mode} needs" in sizing.reason
    assert ("not even that fits" in sizing.reason) == (mebibytes == 1)


@pytest.mark.parametrize(
    ("mebibytes", "batch", "would"),
    [
        (6, "64", "TRAINER_MICRO_BATCH=1 would, with"),
        (4, "8", "TRAINER_ACTIVATION_CHECKPOINTING=true would, with"),
        (
            2.5,
            "8",
            "TRAINER_MODE=tp TRAINER_MESH=dp_shard=2,tp=4 TRAINER_MICRO_BATCH=1 would, with",
        ),
        (0.5, "8", "MiB is the least known, so more ranks or larger devices"),
    ],
)
def test_where_nothing_fits_it_says_what_would(mebibytes: float, batch: str, would: str) -> None:
    reason = chosen(mebibytes / 1024, global_batch=batch).reason
    assert "not even that fits: " in reason
    assert would in reason
    if " would, " not in would:
        return
    words = [word for word in would.split() if word.startswith("TRAINER_")]
    change = dict(word.removeprefix("TRAINER_").lower().split("=", 1) for word in words)
    common = {"mode": "fsdp", "task": "charlm-gpt", "optimizer": "adamw", "global_batch": batch}
    settings = parse(common | change, label=variable)
    pieces = pieces_of("charlm-gpt")
    assert pieces is not None
    need = estimate(pieces, size(settings, 8, label=variable), settings)
    assert need.total <= 0.9 * mebibytes * 2**20  # and that is right


@pytest.mark.parametrize(
    ("settings", "world_size", "mode"),
    [
        ({"device_memory": ""}, 8, "ddp"),  # not known
        ({"task": "my.module:Task"}, 8, "ddp"),
        ({"mode": "ddp"}, 8, "ddp"),
        ({"mesh": "dp_shard=8"}, 8, "fsdp"),
        ({}, 1, "single"),
    ],
)
def test_auto_chooses_only_where_it_may_and_can(
    settings: dict[str, str], world_size: int, mode: str
) -> None:
    memory = None if "device_memory" in settings else 1 / 1024
    settings.pop("device_memory", None)
    sizing = chosen(memory, world_size, **settings)
    assert sizing.mode == mode
    assert "needs" not in sizing.reason


def test_a_real_device_counts_where_nothing_is_said() -> None:
    settings = parse({"task": "charlm-gpt", "optimizer": "adamw"}, label=variable)
    assert settle(settings, 8, label=variable, device_bytes=80 * 2**30).mode == "ddp"
    assert settle(settings, 8, label=variable, device_bytes=2**20).mode == "fsdp"
