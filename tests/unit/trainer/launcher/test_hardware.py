"""A node's hardware: the wait for a driver that does not answer is limited."""

import pytest

from trainer.config.exits import Exit, Fault
from trainer.launcher import hardware


def test_a_driver_that_does_not_answer_makes_the_machine_unfit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "_COUNT_TIMEOUT", 0.001)
    with pytest.raises(Fault, match="cannot be counted: the driver does not answer; set") as caught:
        hardware.count_devices()
    assert caught.value.code == Exit.MACHINE
