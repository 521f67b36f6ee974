"""python -m trainer.check: a line for each check that passes, up to the first that fails."""

import os
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.trainer.engine.wrong_tasks import Right
from trainer.check import main
from trainer.config.exits import Exit

WRONG = "tests.unit.trainer.engine.wrong_tasks"
WRONG_OPTIMIZER = "tests.unit.trainer.engine.wrong_optimizers"
WRONG_DATA = "tests.unit.trainer.engine.wrong_data"


class Unused(Right):
    def model(self) -> Any:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

            def forward(self, points: torch.Tensor) -> Any:
                return self.used(points)

        return Model()


class NoGradient(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets).detach().requires_grad_()


def test_a_right_task_is_reported_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{WRONG}:Right"]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["ok  "] * 8
    assert "model(): Sequential, 42 parameters" in lines[3]
    assert "the backward pass reaches 4 of 4 parameters" in lines[5]
    assert lines[7] == "ok  the optimiser: SGD; first rate of each group: 0.0015"


@pytest.mark.parametrize("task", ["digits", "synthetic", "charlm-gpt"])
def test_a_built_in_task_is_right(task: str) -> None:
    assert main([task]) == Exit.DONE


class Counts(Right):
    seen: Any = 5

    def model(self) -> Any:
        seen = self.seen

        class Model(nn.Linear):
            def get_extra_state(self) -> Any:
                return {"seen": seen}

        return nn.Sequential(Model(2, 2))


class CountsInBytes(Counts):
    seen = (b"5",)


def test_what_an_export_leaves_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{__name__}:Counts"]) == Exit.DONE
    assert "an export leaves out 0._extra_state: it holds" in capsys.readouterr().out


def test_what_a_checkpoint_cannot_hold_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{__name__}:CountsInBytes"]) == Exit.CONFIG
    assert "get_extra_state() gives a bytes (0._extra_state); wanted:" in capsys.readouterr().err


class Decays(Right):
    def schedule(self, step: int, steps: int) -> float:
        return 1 - step / (steps - 1)


def test_a_schedule_gets_the_steps_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{__name__}:Decays"]) == Exit.DONE
    assert "first rate of each group: 0.03" in capsys.readouterr().out


def test_frozen_parameters_are_counted_and_a_wrong_name_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_FREEZE", "0.*")
    assert main([f"{WRONG}:Right"]) == Exit.DONE
    assert "ok  trained: 2 of 4 tensors" in capsys.readouterr().out
    monkeypatch.setenv("TRAINER_FREEZE", "1.*")
    assert main([f"{WRONG}:Right"]) == Exit.CONFIG
    assert "TRAINER_FREEZE='1.*': no tensor of model" in capsys.readouterr().err


def test_unused_parameters_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{__name__}:Unused"]) == Exit.DONE
    assert "reaches 2 of 4 parameters; not unused.weight, unused.bias" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "code", "says"),
    [
        (f"{WRONG}:LossIsAMean", 64, "loss() returned shape () for 2 samples; wanted: (2,)"),
        (f"{WRONG}:ScoreOfTwo", 64, "score() returned shape (2, 2) for 2 samples"),
        (f"{WRONG}:HasCallbacks", 64, "the trainer never calls its on_step()"),
        (f"{WRONG}:ModelIsNone", 64, "model() returned a None"),
        (f"{WRONG}:ModelReturnsNone", 64, "the model returned None"),
        (
            f"{WRONG_OPTIMIZER}:GroupsLeaveOneOut",
            64,
            "parameter_groups() returned no group with 0.bias",
        ),
        (
            f"{WRONG_OPTIMIZER}:OptimizerWantsAClosure",
            64,
            "the optimiser's step raised TypeError: LBFGS.step()",
        ),
        (f"{WRONG}:LossHasWeights", 64, "its margin has parameters (weight) that get a gradient"),
        (
            f"{WRONG_OPTIMIZER}:ScheduleIsNegative",
            64,
            "schedule(0, 60) returned -1; wanted: a number from 0 on",
        ),
        (f"{WRONG_DATA}:SamplesAreWords", 64, "hold no tensor and no number"),
        (f"{WRONG_DATA}:DataIsEmpty", 65, "the training set is empty"),
        (f"{WRONG_DATA}:DataFileIsMissing", 65, "FileNotFoundError"),
        (f"{__name__}:NoGradient", 64, "no parameter of the model has a gradient"),
        ("no_such_module:T", 64, "no module named"),
        ("nothing", 64, "no such task"),
    ],
)
def test_a_wrong_one_is_reported_in_a_line(
    task: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([task]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_reader_who_has_gone_does_not_change_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for task, code in (("Right", Exit.DONE), ("LossIsAMean", Exit.CONFIG)):
        read, write = os.pipe()
        os.close(read)  # as `| head` does
        with os.fdopen(write, "w") as closed, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", closed)
            assert main([f"{WRONG}:{task}"]) == code
        assert "Traceback" not in capsys.readouterr().err
