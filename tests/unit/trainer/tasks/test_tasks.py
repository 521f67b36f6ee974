"""The built-in tasks: shapes, one loss and one score per sample, and the errors for bad data."""

from pathlib import Path
from typing import Any

import pytest
import torch

from trainer import tasks
from trainer.config.catalogue import catalogue
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.task_contract import scores_of
from trainer.models.chain import pieces_of
from trainer.models.gpt import SIZES, Gpt
from trainer.tasks import huggingface

NEED_FILES = {
    "mnist",
    "fashion-mnist",
    "cifar10",
    "imagefolder",
    "huggingface",
}  # tests/unit/trainer/tasks/test_images.py, tests/frameworks/test_huggingface.py


@pytest.mark.parametrize("name", sorted(set(catalogue()) - NEED_FILES))
def test_a_task_gives_one_loss_and_one_score_a_sample(name: str) -> None:
    task = tasks.load(Settings(task=name))
    torch.manual_seed(0)
    model = task.model()
    training, test = task.data(train=True), task.data(train=False)
    assert len(training) > len(test) > 0
    inputs, targets = training.batch(torch.tensor([3, 0, 5]))
    outputs = model(inputs)
    losses, scores = task.loss(outputs, targets), accuracy(task, outputs, targets)
    assert losses.shape == scores.shape == (3,)
    assert ((scores >= 0) & (scores <= 1)).all()
    alone = task.loss(model(inputs[1:2]), targets[1:2])  # a sample's loss is its own
    assert alone[0].item() == pytest.approx(losses[1].item(), rel=1e-4)
    perfect = torch.nn.functional.one_hot(targets.clamp(min=0), outputs.shape[-1]).float() * 100
    assert accuracy(task, perfect, targets).tolist() == [1, 1, 1]


def accuracy(task: tasks.Task, outputs: Any, targets: Any) -> Any:
    return scores_of(task, outputs, targets)["accuracy"][0]


# Without those whose model TRAINER_MODEL names: ResNets can be cut, and transformers is not installed.
@pytest.mark.parametrize(
    "name", sorted(set(catalogue()) - {"cifar10", "huggingface", "imagefolder"})
)
def test_the_catalogue_says_what_a_tasks_model_can(name: str) -> None:
    entry, model = catalogue()[name], tasks.load(Settings(task=name)).model()
    assert entry.divisible(None) == divisible(model)
    assert entry.needs_data == (name in NEED_FILES)
    assert entry.pieces(None) == pieces(model)


@pytest.mark.parametrize("size", SIZES)
def test_the_catalogue_says_what_each_size_of_tokens_can(size: str) -> None:
    entry = catalogue()["tokens"]
    with torch.device("meta"):
        model = Gpt(SIZES[size], vocabulary=8)
        tied = Gpt(SIZES[size], vocabulary=8, tied=True)
    assert entry.divisible(size) == divisible(model)
    assert entry.pieces(size) == pieces(model)
    assert (entry.divisible(f"{size}-tied"), entry.pieces(f"{size}-tied")) == ({}, pieces(tied))


def divisible(model: Any) -> dict[str, int]:
    if not hasattr(model, "tensor_plan"):
        return {}
    found: dict[str, int] = model.tensor_plan(sequence_parallel=True, loss_parallel=True).divisible
    return found


def pieces(model: Any) -> int:
    try:
        return len(pieces_of(model))
    except Fault:
        return 0


def test_training_and_test_windows_of_a_text_do_not_overlap(tmp_path: Path) -> None:
    text = bytes(range(256)) * 40
    (tmp_path / "text").write_bytes(text)
    task = tasks.load(Settings(task="charlm-gpt", data=tmp_path / "text"))
    training, test = task.data(train=True), task.data(train=False)
    inputs, targets = training.batch(torch.arange(len(training)))
    assert inputs.flatten().tolist() == list(text[: inputs.numel()])
    assert targets.flatten().tolist() == list(text[1 : inputs.numel() + 1])
    more, _ = test.batch(torch.arange(len(test)))
    assert more.flatten().tolist() == list(text[inputs.numel() : inputs.numel() + more.numel()])


def test_a_folder_is_read_in_one_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * 300)
    task = tasks.load(Settings(task="charlm-lstm", data=tmp_path))
    first, _ = task.data(train=True).batch(torch.tensor([0]))
    assert bytes(first[0].tolist()).startswith(b"a.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "text has 0 bytes"), (b"short", "has 5 bytes")],
)
def test_missing_or_too_little_text_is_65(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    task = tasks.load(Settings(task="charlm-gru", data=tmp_path / "text"))
    with pytest.raises(Fault, match=message) as caught:
        task.data(train=True)
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_such_module_at_all:T", "no module named"), ("math:Task", "math has no 'Task'")],
)
def test_a_task_that_cannot_be_loaded_is_64(name: str, message: str) -> None:
    with pytest.raises(Fault, match=message) as caught:
        tasks.load(Settings(task=name))
    assert caught.value.code == Exit.CONFIG


def test_blank_lines_between_json_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"text": "a"}\n\n  \r\n{"text": "b"}\n\n', encoding="utf-8")
    found = list(huggingface._objects(file))  # noqa: SLF001
    assert found == [(f"{file}, line 1", {"text": "a"}), (f"{file}, line 4", {"text": "b"})]
