"""Tasks and modes against one process: the same losses, gradient norms, weights and evaluation.

`tests/parity/table.py` has the rows. A new mode, schedule or mesh is a line in ROWS; it is compared for
every task that it fits. A task is a line in TASKS, and what is refused one in REFUSED.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import pool, pool_rank
from tests.parity import faults
from tests.parity.batchnorm import sync_batchnorm_on_cpu
from tests.parity.compare import differences
from tests.parity.conftest import Once
from tests.parity.table import (
    CASES,
    COMPILED,
    OPTIMIZER_CASES,
    QUICK,
    REFUSED,
    ROWS,
    TASKS,
    TOLERANCE,
    WHOLE,
    Case,
    reference,
)
from tests.ranks import run_ranks
from trainer.config.modes import MODES


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow, id=str(case))
        for case in (*CASES, *OPTIMIZER_CASES)
    ],
)
def test_a_mode_equals_one_process(case: Case, once: Once, tmp_path: Path) -> None:
    expected = once(**reference(case.task, case.optimizer, case.precision))
    plant = sync_batchnorm_on_cpu if "sync_batchnorm" in case.settings else None
    events = run_ranks(ROWS[case.row].ranks, tmp_path, plant, **case.settings)
    assert events[0]["compiled_step"] == ("compile" in case.settings)
    found = differences(expected, (tmp_path, events))
    wrong = {name: value for name, value in found.items() if value > TOLERANCE[case.precision]}
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "settings", "message"), REFUSED, ids=lambda value: str(value)[:60]
)
def test_what_cannot_be_is_refused_with_64(
    ranks: int, settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    variables = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    with pool.lend(ranks) as lent:
        case = pool_rank.Case(variables | {"TRAINER_OUT": str(tmp_path), "TRAINER_LOG": "json"})
        endings = pool.carry_out(case, lent, timeout=60)
    assert [ending.code for ending in endings] == [64] * ranks
    assert message in endings[0].stderr


def _elastic() -> None:
    os.environ["PET_NNODES"] = "1:8"


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "micro"), [("ddp", ""), ("ddp", "4"), ("fsdp", "4")])
def test_uneven_shares_of_the_batch_equal_one_process_too(
    mode: str, micro: str, once: Once, tmp_path: Path
) -> None:
    whole = reference("digits", "adamw", "fp64")
    events = run_ranks(3, tmp_path, _elastic, **whole | {"mode": mode, "micro_batch": micro})
    found = differences(once(**whole), (tmp_path, events))
    assert max(found.values()) < TOLERANCE["fp64"]


DDP, FSDP = Case("digits", "ddp", "sgd", 1), Case("digits", "fsdp", "sgd", 1)
TP = Case("gpt", "tp", "sgd", 1)

# A fault, the case of the table in which it is planted, and what must show it.
FAULTS: list[tuple[Callable[[], None], Case, str]] = [
    (faults.average_nothing, DDP, "loss"),
    (faults.read_the_same_share, DDP, "loss"),
    (faults.clip_by_the_local_norm, FSDP, "loss"),
    (faults.clip_by_the_local_norm, TP, "loss"),
    (faults.report_the_local_norm, FSDP, "grad_norm"),
    (faults.start_with_other_weights_on_rank_1, FSDP, "loss"),
    (faults.leave_the_last_update_out_on_rank_1, FSDP, "fc1.weight"),
    (faults.evaluate_a_sample_twice, DDP, "evaluation"),
    (faults.clip_by_the_stages_own_norm, Case("digits", "pp gpipe", "sgd", 4), "loss"),
    (faults.keep_each_replicas_gradients, Case("digits", "pp x ddp", "sgd", 4), "loss"),
    (faults.count_what_all_have_many_times, TP, "grad_norm"),
    (faults.keep_the_parts_of_the_norms_gradients, TP, "grad_norm"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "case", "seen_in"), FAULTS, ids=lambda v: getattr(v, "__name__", v)
)
def test_a_planted_fault_is_seen(
    fault: Callable[[], None], case: Case, seen_in: str, once: Once, tmp_path: Path
) -> None:
    expected = once(**reference(case.task, case.optimizer, case.precision))
    events = run_ranks(ROWS[case.row].ranks, tmp_path, fault, **case.settings)
    found = differences(expected, (tmp_path, events))
    assert found[seen_in] > 100 * TOLERANCE[case.precision]


@pytest.mark.slow
def test_a_sample_that_only_fills_the_shape_is_not_in_the_loss(once: Once, tmp_path: Path) -> None:
    # 1437 samples in batches of 128: the last is not full
    settings = {"steps": "", "epochs": "2", "global_batch": "128", "micro_batch": ""}
    one = reference(DDP.task, DDP.optimizer, DDP.precision) | settings
    expected = once(**one)
    for name, fault in (("right", None), ("wrong", faults.count_what_only_fills_the_shape)):
        events = run_ranks(2, tmp_path / name, fault, **DDP.settings | settings)
        found = differences(expected, (tmp_path / name, events))
        assert (found["loss"] > TOLERANCE[DDP.precision]) == (fault is not None)


def test_the_table_has_what_it_says() -> None:
    assert {row for task in TASKS.values() for row in task.rows} == {*ROWS}
    cells = {(task, row) for task in TASKS for row in TASKS[task].rows}
    left_out = set() if WHOLE else {("tokens", row) for row in COMPILED}
    assert {(case.task, case.row) for case in CASES} == cells - left_out
    # these two are not synchronous: test_localsgd, test_hogwild
    assert {ROWS[case.row].mode for case in CASES} == {*MODES} - {"localsgd", "hogwild"}
    for mode in {ROWS[row].mode for row in ROWS} - {"single"}:
        of_mode = [case for case in CASES if ROWS[case.row].mode == mode]
        for axis in ("optimizer", "accumulation", "precision"):
            assert len({getattr(case, axis) for case in of_mode}) == 2
        assert not WHOLE or len({(c.optimizer, c.accumulation, c.precision) for c in of_mode}) == 8
        assert any(case in QUICK for case in of_mode)
