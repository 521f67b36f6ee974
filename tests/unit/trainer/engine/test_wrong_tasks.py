"""A wrong task is refused before the first step, in one line: 64, or 65 for its data."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks import run_ranks
from tests.unit.trainer.engine import wrong_data, wrong_habits, wrong_optimizers, wrong_tasks
from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings

# By class; `Right` is in both.
PATHS = {
    name: f"{module.__name__}:{name}"
    for module in (wrong_data, wrong_optimizers, wrong_habits, wrong_tasks)
    for name, kind in vars(module).items()
    if hasattr(kind, "score")
}

CASES = {
    "LossIsAMean": 'loss() returned shape () for 32 samples; wanted: (32,); reduction="none"',
    "LossOfTwo": "loss() returned shape (32, 2) for 32 samples; wanted: (32,)",
    "LossIsAFloat": "loss() returned a float; wanted: a tensor of shape (32,)",
    "LossIsNone": "loss() returned a None",
    "LossIsWhole": "loss() returned torch.int64; wanted: floating-point numbers",
    "LossIsADict": "loss() returned a dict",
    "LossIsNan": "loss() returned nan for training samples with the initial weights; wanted: numbers",
    "LossHasNoGradient": "the first step raised RuntimeError: element 0 of tensors does not require",
    "LossRaises": "loss() raised AttributeError: 'Tensor' object has no attribute 'logits' (",
    "LossSwapped": "loss() raised ",
    "LossTakesOne": "loss() raised TypeError: ",
    "ScoreOfTwo": "score() returned shape (32, 2) for 32 samples",
    "ScoreIsAMean": "score() returned shape () for 32 samples",
    "ScoreInPercent": "score() returned numbers from 100 to 100; an accuracy is from 0 to 1",
    "ScoreIsABool": "score() returned a bool",
    "ScoreIsNone": "score() returned a None",
    "ScoreRaises": "score() raised RuntimeError: ",
    "ScoreIsNoMethod": "it has no score(); a task needs model, data, loss, score and metric",
    "NoMetric": "metric is None; wanted: a name",
    "MetricIsAFunction": "metric is <bound method",
    "NoLoss": "it has no loss()",
    "TakesNoSettings": "TakesNoSettings(settings) raised TypeError: ",
    "TakesMore": "TakesMore(settings) raised TypeError: ",
    "RaisesWhenMade": "RaisesWhenMade(settings) raised AttributeError: 'Settings' object has no",
    "HasCallbacks": "the trainer never calls its on_step(); it knows model, data, loss, score",
    "ListensWrongly": "on_event() raised KeyError: 'loss' (",
    "SampleRaises": "sample() raised AttributeError: 'SampleRaises' object has no attribute 'scale'",
    "SampleIsATensor": "sample() returned what JSON cannot hold: Object of type Tensor is not",
    "SampleIsAText": "sample() returned a str; wanted: a dict of texts, numbers and lists by name",
    "SampleHasAStep": "sample() returned 'step', a field that the sample event already has",
    "OptimizerIsNone": "optimizer() returned a NoneType; wanted: an Optimizer",
    "OptimizerRaises": "optimizer() raised TypeError: ",
    "OptimizerKeepsAList": "optimizer() returned a Keeping whose state 'norms' is a list; a checkpoint",
    "OptimizerKeepsASparseTensor": "returned a Keeping whose state 'kept' is a torch.sparse_coo tensor;",
    "OptimizerAddsAnOption": "optimizer() returned a Counting whose step adds 'count' to its groups",
    "OptimizerIsMadeOfTwo": "optimizer() returned a Both that holds a AdamW, whose state 'step' is not",
    "LossHasWeights": "its margin has parameters (weight) that get a gradient but are not in the",
    "HasATeacher": "a step changes its teacher.",
    "HasAQueue": "a step changes its queue, which is not in the model, so a checkpoint does not have it",
    "HasAFrozenNetInTraining": "a step changes its judge.running_mean, which is not in the model",
    "BlocksOfAnother": "blocks() returned something other than modules of the model",
    "BlocksWithinABlock": "blocks() returned a Sequential that is inside another block",
    "OptimizerOfOthers": "optimizer() returned a SGD without 4 of the 4 parameters that it was given",
    "OptimizerWantsAClosure": "the first step raised TypeError: LBFGS.step() missing 1 required",
    "GroupsAreParameters": 'parameter_groups() returned no list of dicts with "params"',
    "GroupsLeaveOneOut": "parameter_groups() returned no group with 0.bias; set its requires_grad",
    "ScheduleIsNegative": "schedule(0, 3) returned -1; wanted: a number from 0 on",
    "ScoreWithoutTheMetric": "score() returned no 'accuracy', which is the metric",
    "ScoreIsCalledLoss": "score() returned 'loss', a field that the eval event already has",
    "ScoreOfUnequalPair": "score() returned shape (32, 2) for 32 samples; wanted: (32,)",
    "OfMeanIsAPair": "of_mean is ('accuracy', <built-in function exp>); wanted: a dict of functions",
    "OfMeanOfAnother": "of_mean has 'perplexity', which score() does not return",
    "OfMeanRaises": "of_mean, of accuracy, raised AttributeError: 'float' object has no attribute",
    "ModelIsWrapped": "DataParallel; wanted: the module in it, because TRAINER_MODE wraps it",
    "ModelIsSharded": "model() returned a model whose 0.weight is a DTensor; wanted: a plain tensor",
    "JoinsTheGroup": "it has called init_process_group(), which the trainer does; remove the call",
    "ModelIsNone": "model() returned a None; wanted: an nn.Module",
    "ModelIsAClass": "model() returned a type; wanted: an nn.Module",
    "ModelReplacesAWeight": "the forward pass replaces the parameter 0.weight, and the optimiser would",
    "ModelChangesInPlace": "the first step raised RuntimeError: one of the variables needed for",
    "ModelReturnsNone": "the model returned None",
    "ModelIsComplex": "model() returned a model whose weight is torch.complex64; wanted: real; use",
    "ModelIsLazy": "model() returned a model whose weight has no size yet (a lazy layer); wanted:",
    "ModelSharesMemory": "model() returned a model whose 1.weight and 0.weight are two parameters with ",
    "ModelSavesLess": "model() returned a model whose state_dict() lacks bias; wanted: each parameter",
    "ModelSavesMore": "model() returned a model whose state_dict() has scale, which is no parameter or",
    "ModelOnMeta": "model() returned a model whose weight is on the device meta and has no values;",
    "ModelIsSparse": "model() returned a model whose graph is torch.sparse_coo; wanted: a dense tensor",
    "ModelRaises": "model() raised TypeError: ",
    "ModelOfAnotherWidth": "the model, on training samples, raised RuntimeError: ",
    "ModelReturnsATuple": "loss() raised ",
    "DataIsALoader": "data(train=True) returned a DataLoader; wanted: its dataset",
    "DataIsAGenerator": "data(train=True) returned generator, which has no len()",
    "DataIsAStream": "data(train=True) returned Stream, an IterableDataset without a length; add",
    "DataIsNone": "data(train=True) returned None, which has no len()",
    "DataIsAPair": "data(train=True) returned set; wanted: a Dataset or Tensors",
    "ATestSampleHasNoTokens": "data(train=False) returned Counted, whose tokens is 0 for sample 0;",
    "DataIsNan": "loss() returned nan for training samples",
    "LengthIsReal": "the len() of data(train=True) raised TypeError: 'float' object cannot be",
    "LengthIsNegative": "the len() of data(train=True) raised ValueError: __len__() should return",
    "DataTakesNothing": "data(train=True) raised TypeError: ",
    "DataRaises": "data(train=True) raised AttributeError: 'Tensor' object has no attribute 'lnog'",
    "TargetsAreFewer": "data(train=True) raised ValueError: Tensors of 8 inputs and 7 targets; wanted:",
    "SamplesAreWords": "the inputs of the training samples hold no tensor and no number",
    "SamplesAreForAnotherModel": "the model, on training samples, raised TypeError: ",
    "BatchRaises": "reading training samples raised IndexError: index is out of bounds",
    "TargetsAreReal": "loss() raised RuntimeError: ",
    "ClassTooMany": "loss() raised IndexError: Target 2 is out of bounds.",
    "InputsAreWhole": "the model, on training samples, raised RuntimeError: mat1 and mat2 must have",
    "TargetsOnAnotherDevice": "loss() raised ",
}
DATA = {  # 65
    "DataIsEmpty": "0 training and 0 test samples; both need at least one",
    "NoTestData": "8 training and 0 test samples",
    "DataFileIsMissing": "data(train=True) raised FileNotFoundError: [Errno 2] No such file",
    "SamplesRaise": "none of 8 samples from 0 on can be read: AttributeError: 'Unreadable' object has",
}


# Refused where the task is loaded, before there is a run folder.
AT_ONCE = {"ScoreIsNoMethod", "NoMetric", "MetricIsAFunction", "NoLoss", "TakesNoSettings"}
AT_ONCE |= {"TakesMore", "RaisesWhenMade", "HasCallbacks"}


def refusal(folder: Path, name: str, *, code: Any, ranks: int = 1, **settings: str) -> str:
    """Return the message of a run that ends with `code` before its first step."""
    run = {"task": PATHS[name], "steps": "3", "checkpoint_steps": "0"} | settings
    events = run_ranks(ranks, folder, code=code, **run)
    assert not {"step", "eval", "summary"} & {event["event"] for event in events}
    (error,) = [event for event in events if event["event"] == "error"]
    assert "\n" not in error["message"]
    return str(error["message"])


def test_every_wrong_task_is_a_case() -> None:
    assert PATHS.keys() - {"Right"} == {*CASES, *DATA}
    assert len(PATHS) > 40


class Counts(wrong_tasks.Right):
    """It counts what it may only show."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.seen = torch.zeros(())

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.seen += len(targets)
        return super().loss(outputs, targets)


class CountsTokens(wrong_tasks.Right):
    """Its accuracy is a pair: the right ones of three tokens for each sample."""

    def score(self, outputs: Any, targets: Any) -> Any:
        return 3 * super().score(outputs, targets), torch.full((len(targets),), 3.0)


class Slotted:
    """It has no __dict__."""

    __slots__ = ("data", "loss", "metric", "model", "score")

    def __init__(self, settings: Settings) -> None:
        right = wrong_tasks.Right(settings)
        for name in self.__slots__:
            setattr(self, name, getattr(right, name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [PATHS["Right"], *(f"{__name__}:{n}" for n in ("Counts", "CountsTokens", "Slotted"))]
)
def test_the_right_one_trains(task: str, tmp_path: Path) -> None:
    events = run_ranks(1, tmp_path, task=task, steps="3")
    assert events[-1]["event"] == "summary"


@pytest.mark.parametrize("name", sorted(AT_ONCE))
def test_what_can_be_seen_without_data_is_refused_at_once(name: str) -> None:
    with pytest.raises(Fault) as caught:
        tasks.load(Settings(task=PATHS[name]))
    assert caught.value.code == Exit.CONFIG
    assert CASES[name] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        (name, ranks)
        for name in sorted({*CASES, *DATA} - AT_ONCE)
        for ranks in (1, 2)
        # Only rank 0 sees the first; with a launcher, below. The second needs a group.
        if (name, ranks) not in (("ListensWrongly", 2), ("ModelIsSharded", 1))
        and name != "JoinsTheGroup"  # which the ranks of the pool would keep; below
    ],
)
def test_a_wrong_task_is_refused_before_a_step(name: str, ranks: int, tmp_path: Path) -> None:
    code = 65 if name in DATA else 64
    message = refusal(tmp_path, name, code=code, ranks=ranks, global_batch="64", micro_batch="32")
    assert (CASES | DATA)[name] in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("LossIsAMean", "ddp"),
        ("LossRaises", "fsdp"),
        ("ScoreOfTwo", "ddp-zero1"),
        ("SamplesAreWords", "ddp"),
        ("ModelRaises", "pp"),
        ("BatchRaises", "pp"),
    ],
)
def test_two_ranks_refuse_it_together(name: str, mode: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, name, code=64, ranks=2, mode=mode, micro_batch="8")
    assert CASES[name].replace("32", "8") in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    [("LossIsAMean", "pp"), ("ListensWrongly", "ddp"), ("JoinsTheGroup", "ddp")],
)
def test_a_launcher_ends_with_64_where_one_rank_sees_it(name: str, mode: str, start: Any) -> None:
    settings = {"TRAINER_MODE": mode, "TRAINER_MICRO_BATCH": "8", "TRAINER_LOG": "json"}
    settings |= {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "2"}
    ended = start("-m", "trainer.launch", TRAINER_TASK=PATHS[name], **settings).end()
    assert ended.code == 64
    assert CASES[name].replace("32", "8") in ended.stderr
    assert len(ended.of("launch")) <= 1  # not retried


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class T(:\n", "the import of slip raised SyntaxError: "),
        ("raise ValueError('why')\n", "the import of slip raised ValueError: why ("),
        ("import sys\nsys.exit(3)\n", "the import of slip raised SystemExit: 3 ("),
        ("import no_such_package\n", "no module named 'no_such_package' on the Python path"),
    ],
)
def test_a_file_that_cannot_be_imported_is_64(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slip.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Fault) as caught:
        tasks.load(Settings(task="slip:T"))
    assert caught.value.code == Exit.CONFIG
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
