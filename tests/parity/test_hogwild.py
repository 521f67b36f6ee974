"""Hogwild with one process is not asynchronous: the same weights as without.

With two, tests/faults/test_hogwild.py compares the accuracy.
"""

from pathlib import Path

from tests.parity.compare import curve, differences, worst
from tests.parity.conftest import Single
from tests.parity.table import TOLERANCE, Case
from tests.ranks import run_ranks


def test_one_process_equals_single(single: Single, tmp_path: Path) -> None:
    case = Case("digits", "single", "sgd", 4)
    expected = single(case.task, case.optimizer, case.precision)
    hogwild = {"mode": "hogwild", "processes": "1"}
    events = run_ranks(1, tmp_path, **case.settings | hogwild)
    found = differences(expected, (tmp_path, events))
    late = {"loss", "grad_norm"}  # what is reported is the step before, while this one is computed
    wrong = {name for name, value in found.items() if value > TOLERANCE[case.precision]}
    assert wrong == late
    for name in late:
        one, other = curve(expected[1], name), curve(events, name)
        assert worst(one[:-1], other[1:]) < TOLERANCE[case.precision]
