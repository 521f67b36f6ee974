"""The reported position of a rank's main thread, from its stack."""

import inspect
import tempfile

import pytest
import torch

from trainer.engine.step import nonfinite
from trainer.watch import position
from trainer.watch.stacks import Frame


@pytest.mark.parametrize(("device", "phase"), [("cuda", "device"), ("cpu", "compute")])
def test_a_rank_that_waits_for_its_gpu_is_not_at_work(
    device: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of the guard goes through a file of torch."""
    stack = [
        Frame(str(inspect.getsourcefile(torch.cuda.Event.synchronize)), "1", "synchronize"),
        Frame(str(nonfinite.__file__), "1", "read"),
    ]
    monkeypatch.setattr(position, "main_stack", lambda _: stack)
    with tempfile.TemporaryFile() as scratch:
        found = position.main_position(scratch, device=device, is_alone=True)
    assert found is not None
    assert (found.phase, found.waiting) == (phase, device == "cuda")
