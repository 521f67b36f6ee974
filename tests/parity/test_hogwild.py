"""Hogwild with one process is not asynchronous: the same weights as without.

With two, tests/faults/test_hogwild.py compares the accuracy.
"""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.compare import curve, differences, worst
from tests.parity.conftest import Once
from tests.parity.table import COMMON, TOLERANCE, Case, reference
from tests.ranks import run_ranks, weights


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits", "tokens, tied"])
def test_one_process_equals_single(task: str, once: Once, tmp_path: Path) -> None:
    case = Case(task, "single", "sgd", 4)
    expected = once(**reference(case.task, case.optimizer, case.precision))
    hogwild = {"mode": "hogwild", "processes": "1"}
    events = run_ranks(1, tmp_path, **case.settings | hogwild)
    found = differences(expected, (tmp_path, events))
    late = {"loss", "grad_norm"}  # what is reported is the step before, while this one is computed
    wrong = {name for name, value in found.items() if value > TOLERANCE[case.precision]}
    assert wrong == late
    for name in late:
        one, other = curve(expected[1], name), curve(events, name)
        assert worst(one[:-1], other[1:]) < TOLERANCE[case.precision]


@pytest.mark.slow
def test_an_optimizer_may_have_numbers_and_dicts_in_its_state(once: Once, tmp_path: Path) -> None:
    common = COMMON | {"task": "tests.parity.own_tasks:Numbered", "precision": "fp64"}
    common |= {"checkpoint_steps": "7"}  # before it the states of the processes are averaged
    folder, _ = once(mode="single", **common)
    run_ranks(1, tmp_path, mode="hogwild", processes="1", **common)
    one, other = weights(folder), weights(tmp_path)
    assert all(torch.allclose(one[name], other[name], rtol=1e-10) for name in one)


def _copy_slowly() -> None:
    from trainer.checkpoint.staging import Staging

    copy = Staging.copy

    def slow(self: Staging, state: Any) -> Any:
        time.sleep(1)
        return copy(self, state)

    Staging.copy = slow  # type: ignore[method-assign]


@pytest.mark.slow
def test_no_update_comes_between_a_checkpoint_and_its_copy(tmp_path: Path) -> None:
    common = {"task": "synthetic", "mode": "hogwild", "processes": "1", "schedule": "constant"}
    common |= {"eval_steps": "0", "preflight": "off"}
    run_ranks(1, tmp_path / "four", steps="4", **common)
    run_ranks(1, tmp_path / "six", _copy_slowly, steps="6", checkpoint_steps="4", **common)
    (tmp_path / "six/checkpoints/step-00000006").rename(tmp_path / "aside")
    one, other = weights(tmp_path / "four"), weights(tmp_path / "six")
    assert all(torch.equal(one[name], other[name]) for name in one)
