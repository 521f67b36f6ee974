"""Mode, mesh and batches: what fits, what does not, and what a refusal offers instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.environment import from_environment, variable
from trainer.config.exits import Exit, Fault
from trainer.config.modes import AXES, MODES
from trainer.config.settings import Settings
from trainer.plan.batches import divide_batch
from trainer.plan.mesh import data_rank
from trainer.plan.sizing import size


@pytest.mark.parametrize(("world", "mode"), [(1, "single"), (2, "ddp"), (16, "ddp")])
def test_auto_chooses_by_the_world_and_says_why(world: int, mode: str) -> None:
    sizing = size(Settings(), world, label=variable)
    assert sizing.mode == mode
    assert sizing.reason.startswith("auto: ")


@pytest.mark.parametrize(
    ("mesh", "world", "mode"),
    [
        ("dp_replicate=4", 4, "ddp"),
        ("dp_shard=4", 4, "fsdp"),
        ("dp_replicate=2,dp_shard=2", 4, "hsdp"),
        ("dp_replicate=1,dp_shard=4", 4, "fsdp"),
        ("tp=2", 2, "tp"),
        ("dp_replicate=2,tp=2", 4, "tp"),
        ("dp_replicate=2,dp_shard=2,tp=2", 8, "tp"),
        ("pp=2", 2, "pp"),
        ("pp=2,dp_shard=2,tp=2", 8, "pp"),
        ("tp=1", 1, "single"),
    ],
)
def test_auto_takes_the_mode_that_the_mesh_stands_for(mesh: str, world: int, mode: str) -> None:
    sizing = size(Settings(task="charlm-gpt", mesh=mesh), world, label=variable)
    assert sizing.mode == mode
    assert [axis for axis, n in sizing.mesh.items() if n > 1 and axis not in sizing.reason] == []


REFUSED = [
    ({"MODE": "single"}, 2, "TRAINER_MODE='single': runs in one process, but there are 2 ranks"),
    ({"MESH": "dp_replicate=3"}, 2, "multiplies to 3, but the world size is 2; use dp_replicate=2"),
    (
        {"MODE": "single", "MESH": "dp_replicate=2"},
        1,
        "mode single does not use the axis dp_replicate",
    ),
    ({"MODE": "ddp", "MESH": "tp=2"}, 2, "mode ddp does not use the axis tp; it uses dp_replicate"),
    ({"MESH": "tp=2"}, 4, "multiplies to 2, but the world size is 4; use tp=4"),
    ({"MESH": "tp"}, 2, "'tp' is not AXIS=SIZE"),
    ({"MESH": "tp=0"}, 2, "'tp=0' is not AXIS=SIZE"),
    ({"MESH": "dp_replicate=1,dp_replicate=2"}, 2, "at most once"),
    ({"GLOBAL_BATCH": "65"}, 2, "TRAINER_GLOBAL_BATCH=65: does not divide over 2"),
    ({"GLOBAL_BATCH": "65"}, 2, "use 64 or 66"),
    ({"GLOBAL_BATCH": "3"}, 4, "ranks; use 4"),
    (
        {"GLOBAL_BATCH": "64", "MICRO_BATCH": "12"},
        2,
        "TRAINER_MICRO_BATCH=12: does not divide the 32",
    ),
    ({"GLOBAL_BATCH": "64", "MICRO_BATCH": "12"}, 2, "use 8"),
    ({"MICRO_BATCH": "100"}, 2, "use 16"),
    ({"MODE": "dp", "COMPILE": "true"}, 1, "TRAINER_COMPILE=true: not with mode dp: its replicas"),
    ({"MODE": "dp-balanced", "COMPILE": "1"}, 1, "TRAINER_COMPILE=true: not with mode dp-balanced"),
    (
        {"MODE": "hogwild", "COMPILE": "1"},
        1,
        "TRAINER_COMPILE=true: not with mode hogwild: it sends the model",
    ),
    (
        {"MODE": "hogwild", "ACTIVATION_CHECKPOINTING": "1"},
        1,
        "TRAINER_ACTIVATION_CHECKPOINTING=true: not with mode hogwild: it sends the model",
    ),
    (
        {"MODE": "hogwild", "PRECISION": "fp16"},
        1,
        "TRAINER_PRECISION='fp16': not with mode hogwild: it has no",
    ),
    (
        {"MODE": "localsgd", "FINGERPRINT_STEPS": "5"},
        2,
        "TRAINER_FINGERPRINT_STEPS=5: not with mode localsgd: its ranks",
    ),
    ({"MODE": "localsgd", "EMA_DECAY": "0.9"}, 2, "TRAINER_EMA_DECAY=0.9: not with mode localsgd"),
    (
        {"MODE": "localsgd", "SYNC_BATCHNORM": "1"},
        2,
        "TRAINER_SYNC_BATCHNORM=true: not with mode localsgd",
    ),
    (
        {"OPTIMIZER": "muon", "MODE": "fsdp"},
        2,
        "TRAINER_OPTIMIZER='muon': not with mode fsdp and dp_shard=2: it orthogonalises whole",
    ),
    (
        {"OPTIMIZER": "muon", "MESH": "pp=2,tp=2", "TASK": "charlm-gpt"},
        4,
        "TRAINER_OPTIMIZER='muon': not with mode pp and tp=2",
    ),
    (
        {"STATIC_GRAPH": "true", "MICRO_BATCH": "8"},
        2,
        (
            "TRAINER_STATIC_GRAPH=true: not supported with gradient accumulation; remove "
            "TRAINER_MICRO_BATCH=8"
        ),
    ),
    (
        {"MODE": "tp", "TASK": "digits"},
        2,
        "task digits: its model cannot be split over the axis tp",
    ),
    ({"MESH": "tp=3", "MODE": "tp", "TASK": "charlm-gpt"}, 3, "the 4 heads of its model do not"),
    (
        {"MODE": "tp", "TASK": "tokens", "MODEL": "tiny-tied"},
        2,
        "task tokens, tiny-tied: its model cannot be split",
    ),
    ({"MODE": "pp", "TASK": "seqclass"}, 2, "task seqclass: its model cannot be cut into stages"),
    ({"MODE": "pp", "TASK": "synthetic"}, 4, "the 2 pieces of its model cannot make 4 stages"),
]


@pytest.mark.parametrize(("environment", "world", "message"), REFUSED)
def test_refusals(environment: dict[str, str], world: int, message: str) -> None:
    settings = from_environment({f"TRAINER_{name}": value for name, value in environment.items()})
    with pytest.raises(Fault) as caught:
        size(settings, world, label=variable)
    assert caught.value.code == Exit.CONFIG
    assert message in str(caught.value)


def test_what_a_mode_refuses_does_not_matter_on_one_rank() -> None:
    settings = from_environment({"TRAINER_MODE": "localsgd", "TRAINER_EMA_DECAY": "0.9"})
    assert size(settings, 1, label=variable).mode == "localsgd"


def test_every_setting_that_a_mode_names_exists() -> None:
    for mode in MODES.values():
        named = [one.setting for one in mode.refuses] + [mode.sends_every or "local_steps"]
        assert {*named} <= {*Settings.model_fields}


def test_a_mesh_may_be_written_with_axes_of_one() -> None:
    settings = from_environment({"TRAINER_MESH": "pp=1, dp_replicate=2"})
    assert size(settings, 2, label=variable).mesh["dp_replicate"] == 2


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 64))
def test_batches_multiply_to_what_was_set(micro: int, accumulation: int, replicas: int) -> None:
    batches = divide_batch(micro * accumulation * replicas, micro, replicas, label=variable)
    assert (batches.micro, batches.accumulation, batches.replicas) == (
        micro,
        accumulation,
        replicas,
    )


@given(st.integers(1, 10**6), st.integers(1, 512))
def test_a_batch_that_would_do_does(global_batch: int, replicas: int) -> None:
    try:
        divide_batch(global_batch, None, replicas, label=variable)
    except Fault as fault:
        for offer in str(fault).partition("ranks; use ")[2].split(" or "):
            divide_batch(int(offer), None, replicas, label=variable)


def test_data_ranks_number_the_data_axes_only() -> None:
    mesh = {"pp": 2, "dp_replicate": 2, "dp_shard": 3, "tp": 2}
    places = [
        {"pp": p, "dp_replicate": r, "dp_shard": s, "tp": t}
        for p in range(2)
        for r in range(2)
        for s in range(3)
        for t in range(2)
    ]
    ranks = [data_rank(place, mesh) for place in places]
    assert sorted(set(ranks)) == list(range(6))
    assert all(ranks.count(rank) == 4 for rank in ranks)


def test_every_mode_has_its_file_and_known_axes() -> None:
    from tests.conftest import ROOT

    files = {
        path.stem.replace("_", "-") for path in (ROOT / "trainer/strategies").glob("[a-z]*.py")
    }
    assert files == set(MODES)
    assert all(set(mode.axes) <= set(AXES) for mode in MODES.values())
