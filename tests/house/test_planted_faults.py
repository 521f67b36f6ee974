"""Each fault of planted_faults.yaml can be planted: its text is in its file once, its tests exist."""

import pytest

from tests.conftest import ROOT
from tests.house.planted_faults import Fault, applies, table


@pytest.mark.parametrize("fault", table(), ids=lambda fault: f"{fault.file}:{fault.before[:30]}")
def test_it_can_be_planted(fault: Fault) -> None:
    assert applies(fault) == "applies"
    assert fault.after != fault.before
    assert [path for path in fault.tests.split() if not (ROOT / "tests" / path).exists()] == []
