"""Tasks and modes against one process: the same losses, gradient norms, weights and evaluation.

`tests/parity/table.py` has the rows. A new mode, schedule or mesh is a line in ROWS; it is compared for
digits, and for the tasks that name it. A task is a line in TASKS, and what is refused one in REFUSED.
The run in one process is made once for all workers of pytest.
"""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parity.table import CASES, QUICK, REFUSED, ROWS, TASKS, TOLERANCE, Case, reference
from tests.parity.test_parity import curve, worst
from tests.ranks import run_ranks, weights

Single = Callable[[str, str, str], tuple[Path, list[dict[str, Any]]]]


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Single:
    """Return what gives folder and events of the run in one process; the first who asks makes it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # the workers' own folders stand side by side in it

    def run(task: str, optimizer: str, precision: str) -> tuple[Path, list[dict[str, Any]]]:
        folder = root / f"parity-{task}-{optimizer}-{precision}"
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder / "done"
            if not done.exists():
                run_ranks(1, folder, **reference(task, optimizer, precision))
                done.touch()
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return folder, [json.loads(line) for line in lines]

    return run


def differences(
    one: tuple[Path, list[dict[str, Any]]], other: tuple[Path, list[dict[str, Any]]]
) -> dict[str, float]:
    """Return the largest relative difference of everything that is compared, by its name."""
    found = {
        name: worst(curve(one[1], name), curve(other[1], name)) for name in ("loss", "grad_norm")
    }
    last = [[e for e in events if e["event"] == "eval"][-1] for _, events in (one, other)]
    found["evaluation"] = abs(last[0]["loss"] - last[1]["loss"]) / last[0]["loss"]
    expected, mine = weights(one[0]), weights(other[0])
    assert expected.keys() == mine.keys()
    for name, tensor in expected.items():
        difference = (tensor - mine[name]).double().norm() / tensor.double().norm().clamp(min=1e-9)
        found[name] = float(difference)
    return found


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if c in QUICK else pytest.mark.slow, id=str(c)) for c in CASES],
)
def test_a_mode_equals_one_process(case: Case, single: Single, tmp_path: Path) -> None:
    expected = single(case.task, case.optimizer, case.precision)
    events = run_ranks(ROWS[case.row].ranks, tmp_path, **case.settings)
    found = differences(expected, (tmp_path, events))
    wrong = {name: value for name, value in found.items() if value > TOLERANCE[case.precision]}
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(("task", "row", "message"), REFUSED)
def test_what_cannot_be_is_refused_with_64(
    task: str, row: str, message: str, tmp_path: Path
) -> None:
    settings = Case(task, row, "sgd", 1).settings
    events = run_ranks(ROWS[row].ranks, tmp_path, code=64, **settings)
    assert message in events[-1]["message"]


def _average_nothing() -> None:
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel.require_backward_grad_sync = property(  # type: ignore[assignment]
        lambda _: False, lambda _, __: None
    )


def _clip_by_the_local_norm() -> None:
    from torch.nn.utils import get_total_norm

    from trainer import strategies

    strategies.global_norm = lambda gradients, _: get_total_norm(
        [strategies.local(gradient) for gradient in gradients]
    )


def _start_with_other_weights_on_rank_1() -> None:
    from trainer.models import build as model

    def change(whole: Any, _: Any) -> None:
        for parameter in whole.parameters():
            parameter.data += 0.01 * (os.environ["RANK"] == "1")

    model._broadcast = change  # noqa: SLF001


def _evaluate_a_sample_twice() -> None:
    from trainer import evaluation

    original = evaluation.evaluation_shares

    def twice(*arguments: Any, **named: Any) -> Any:
        for samples in original(*arguments, **named):
            samples.indices[1] = samples.indices[0]
            yield samples

    evaluation.evaluation_shares = twice  # type: ignore[assignment]


def _count_what_only_fills_the_shape() -> None:
    from trainer import strategies

    def all_of_them(outputs: Any, batch: Any, context: Any) -> Any:
        return context.loss(outputs, batch.targets).sum()

    strategies.weighted_loss = all_of_them


# 1437 samples in batches of 128: the last is not full
_LAST_NOT_FULL = {"steps": "", "epochs": "2", "global_batch": "128", "clip_norm": "0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "row", "settings", "seen_in"),
    [
        (_average_nothing, "ddp", {}, "loss"),
        (_clip_by_the_local_norm, "fsdp", {}, "loss"),
        (_start_with_other_weights_on_rank_1, "fsdp", {}, "loss"),
        (_evaluate_a_sample_twice, "ddp", {}, "evaluation"),
        (_count_what_only_fills_the_shape, "ddp", _LAST_NOT_FULL, "loss"),
    ],
)
def test_a_planted_fault_is_seen(
    fault: Callable[[], None], row: str, settings: dict[str, str], seen_in: str, tmp_path: Path
) -> None:
    one = reference("digits", "sgd", "fp64") | settings
    expected = run_ranks(1, tmp_path / "one", **one)
    faulty = Case("digits", row, "sgd", 1).settings | {"micro_batch": ""} | settings
    for folder, before in (("right", None), ("wrong", fault)):
        events = run_ranks(ROWS[row].ranks, tmp_path / folder, before, **faulty)
        found = differences((tmp_path / "one", expected), (tmp_path / folder, events))
        assert (found[seen_in] > TOLERANCE["fp64"]) == (folder == "wrong")


def test_the_table_names_rows_that_are_there() -> None:
    assert {row for task in TASKS.values() for row in task.rows} <= ROWS.keys()
    assert {case for case in QUICK if case not in CASES} == set()
