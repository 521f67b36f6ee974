"""The pipeline's schedules: torch can run what is accepted, and refusals offer what can run."""

from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.environment import from_environment, variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.plan import schedules
from trainer.plan.schedules import SCHEDULES
from trainer.plan.sizing import size

NAMES = st.sampled_from(sorted(SCHEDULES))


def test_the_setting_names_every_schedule() -> None:
    assert set(get_args(Settings.model_fields["pipeline_schedule"].annotation)) == set(SCHEDULES)


def stand_in(index: int, rank: int, ranks: int, stages: int) -> SimpleNamespace:
    """Return the part of a PipelineStage that a schedule reads when it is planned."""
    return SimpleNamespace(
        stage_index=index,
        num_stages=stages,
        group_size=ranks,
        group_rank=rank,
        is_first=index == 0,
        is_last=index == stages - 1,
        submod=None,
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_torch_plans_what_fits_and_holds_the_stages_where_we_do(name: str, ranks: int) -> None:
    from torch.distributed.pipelining import schedules as torchs

    kind = getattr(torchs, SCHEDULES[name].kind)
    stages = schedules.count_stages(name, ranks, None, label=variable)
    held = [schedules.stages_of(name, rank, ranks, stages) for rank in range(ranks)]
    assert sorted(index for of_rank in held for index in of_rank) == list(range(stages))
    for count in filter(lambda n: schedules.can_run(name, ranks, n), range(1, 13)):
        mine = [stand_in(index, 0, ranks, stages) for index in held[0]]
        schedule = kind(mine if stages > ranks else mine[0], count)
        if stages > ranks:
            mapping = schedule.stage_index_to_group_rank
            assert [mapping[index] for index in held[-1]] == [ranks - 1] * len(held[-1])


@given(NAMES, st.integers(1, 8), st.integers(1, 200))
def test_the_default_micro_batch_fits_or_nothing_does(name: str, ranks: int, samples: int) -> None:
    micro = schedules.default_micro_batch(name, ranks, samples)
    assert samples % micro == 0
    try:
        schedules.check_micro_batch(name, ranks, samples, micro, label=variable)
    except Fault:
        divisors = [n for n in range(1, samples + 1) if samples % n == 0]
        assert not any(schedules.can_run(name, ranks, n) for n in divisors)


@given(NAMES, st.integers(2, 8), st.integers(1, 200), st.data())
def test_a_micro_batch_that_would_do_does(
    name: str, ranks: int, samples: int, data: st.DataObject
) -> None:
    micro = data.draw(st.sampled_from([n for n in range(1, samples + 1) if samples % n == 0]))
    try:
        schedules.check_micro_batch(name, ranks, samples, micro, label=variable)
    except Fault as fault:
        _, found, offer = str(fault).partition("; use TRAINER_MICRO_BATCH=")
        if found:
            schedules.check_micro_batch(name, ranks, samples, int(offer), label=variable)


REFUSED = [
    ({"STAGES": "3"}, 2, "TRAINER_STAGES=3: TRAINER_PIPELINE_SCHEDULE=1f1b needs 1 on each of 2"),
    (
        {"PIPELINE_SCHEDULE": "zbv", "STAGES": "6"},
        2,
        "TRAINER_PIPELINE_SCHEDULE=zbv needs 2 on each of 2 ranks; use 4",
    ),
    (
        {"PIPELINE_SCHEDULE": "interleaved-1f1b", "STAGES": "2"},
        2,
        "needs 2 or more on each of 2 ranks; use 4",
    ),
    (
        {"MICRO_BATCH": "16"},
        4,
        "=1f1b cannot run on 4 ranks with this number; use TRAINER_MICRO_BATCH=8",
    ),
    (
        {"GLOBAL_BATCH": "3"},
        4,
        "set TRAINER_GLOBAL_BATCH so that each pipeline has at least 4 samples",
    ),
    ({"PIPELINE_SCHEDULE": "2f2b"}, 2, "TRAINER_PIPELINE_SCHEDULE='2f2b': must be 'gpipe', '1f1b'"),
    ({"MESH": "pp=2,tp=2", "MODE": "ddp"}, 4, "mode ddp does not use the axis pp"),
]


@pytest.mark.parametrize(("environment", "world", "message"), REFUSED)
def test_refusals(environment: dict[str, str], world: int, message: str) -> None:
    values = {f"TRAINER_{name}": value for name, value in ({"MODE": "pp"} | environment).items()}
    with pytest.raises(Fault) as caught:
        size(from_environment(values), world, label=variable)
    assert caught.value.code == Exit.CONFIG
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "world", "expected"),
    [
        ({}, 2, (4, 8, 1, 2)),
        ({}, 4, (2, 16, 1, 4)),
        ({"PIPELINE_SCHEDULE": "zbv"}, 2, (4, 8, 1, 4)),
        ({"MESH": "pp=2,dp_replicate=2"}, 4, (2, 8, 2, 2)),
        ({"MESH": "pp=2,dp_shard=2", "MICRO_BATCH": "4"}, 4, (4, 4, 2, 2)),
        ({"MODE": "mp", "STAGES": "4"}, 1, (2, 16, 1, 4)),
        ({"MODE": "mp"}, 1, (4, 8, 1, None)),
    ],
)
def test_sizes(
    environment: dict[str, str], world: int, expected: tuple[int, int, int, int | None]
) -> None:
    values = {f"TRAINER_{name}": value for name, value in ({"MODE": "pp"} | environment).items()}
    sizing = size(from_environment(values), world, label=variable)
    batches = sizing.batches
    found = (batches.micro, batches.accumulation, batches.replicas, sizing.stages)
    assert found == expected
