"""Sequences of different lengths: padding counts nowhere, and a cut changes the gradient only."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ranks import run_ranks
from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.tasks.seqclass import NO_TARGET, PADDING, Model

KINDS = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
LENGTHS = [3, 11, 1, 7]


def words(lengths: list[int] = LENGTHS, padding: int = 0) -> Tensor:
    torch.manual_seed(1)
    rows = torch.full((len(lengths), max(lengths) + padding), PADDING)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(1, 100, (length,))
    return rows


def model(kind: type[nn.LSTM] | type[nn.GRU], cut: int) -> Model:
    torch.manual_seed(0)
    return Model(kind, classes=5, cut=cut, width=8).double()


@KINDS
@pytest.mark.parametrize("cut", [0, 1, 4, 11, 50])
def test_outputs_are_those_of_each_sequence_read_alone(
    kind: type[nn.LSTM] | type[nn.GRU], cut: int
) -> None:
    net, batch = model(kind, cut), words(padding=3)
    outputs = net(batch)
    assert outputs.shape == (4, 14, 5)
    for row, length in enumerate(LENGTHS):
        states, _ = net.reader.recurrent(net.embedding(batch[row : row + 1, :length]))
        assert torch.allclose(outputs[row, :length], net.head(states)[0])


@KINDS
def test_the_gradient_ends_at_a_cut(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    net, batch = model(kind, 4), words([10, 6])
    embedded: list[Tensor] = []
    net.embedding.register_forward_hook(lambda *arguments: embedded.append(arguments[2]))
    net(batch)[0, 9].sum().backward(inputs=[net.embedding.weight], retain_graph=True)
    gradient = net.embedding.weight.grad
    assert gradient is not None
    reached = {int(word) for word in batch[0, 8:]}  # pieces are 0-3, 4-7, 8-9
    assert {int(word) for word in gradient.abs().sum(dim=1).nonzero()} == reached


def task(**settings: object) -> tasks.Task:
    return tasks.load(Settings.model_validate({"task": "seqclass"} | settings))


def test_loss_and_score_leave_padding_out() -> None:
    labels = torch.tensor([2, 0])
    targets = torch.full((2, 6), NO_TARGET)
    targets[0, :6], targets[1, :2] = labels[0], labels[1]
    outputs = torch.randn(2, 6, 5)
    loss = task().loss(outputs, targets)
    assert loss[1].item() == pytest.approx(
        nn.functional.cross_entropy(outputs[1, :2], targets[1, :2]).item()
    )
    changed = outputs.clone()
    changed[1, 2:] += 100 * torch.randn(4, 5)
    assert torch.equal(task().loss(changed, targets), loss)
    outputs[1, 1, 0], outputs[1, 5, 3] = 50, 100  # right after the last word, wrong on padding
    assert task().score(outputs, targets)[1] == 1


def test_a_class_without_a_file_is_65(tmp_path: Path) -> None:
    for name in ("ham", "lost+found", "spam"):
        (tmp_path / name / "of-2026").mkdir(parents=True)
        if name != "lost+found":
            (tmp_path / name / "of-2026" / "1.txt").touch()
    with pytest.raises(Fault, match=r"no file in lost\+found; each subfolder is a class") as caught:
        task(data=tmp_path)
    assert caught.value.code == Exit.DATA


def test_a_class_is_a_folder_and_a_sequence_a_file(tmp_path: Path) -> None:
    for name in ("ham", "spam"):
        (tmp_path / name).mkdir()
        for number in range(30):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} " * (number + 1))
    own = task(data=tmp_path)
    training, test = own.data(train=True), own.data(train=False)
    assert len(training) + len(test) == 60
    assert sorted([*training.tokens.tolist(), *test.tokens.tolist()]) == sorted([*range(1, 31)] * 2)
    inputs, targets = training.batch(torch.tensor([0, len(training) - 1]))
    assert (inputs != PADDING).sum(dim=1).tolist() == [training.tokens[0], training.tokens[-1]]
    assert [int(row.max()) for row in targets] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "message", "code"),
    [
        ({"data": "nowhere"}, "TRAINER_DATA=nowhere: No such file", Exit.DATA),
        ({"data": "."}, "found 0 subfolders; it needs one for each class", Exit.DATA),
        ({"model": "rnn"}, "TRAINER_MODEL='rnn': task seqclass has lstm, gru", Exit.CONFIG),
    ],
)
def test_what_does_not_fit_is_refused(
    settings: dict[str, str],
    message: str,
    code: Exit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Fault, match=message) as caught:
        task(**settings).model()
    assert caught.value.code == code


COMMON = {
    "task": "seqclass",
    "steps": "6",
    "global_batch": "32",
    "precision": "fp64",
    "preflight": "off",
    "eval_steps": "0",
    "checkpoint_steps": "0",
    "bptt": "20",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return figures(run_ranks(1, tmp_path_factory.mktemp("alone"), mode="single", **COMMON))


def figures(events: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        name: [event[name] for event in events if event["event"] == kind]
        for kind, name in (("step", "loss"), ("step", "grad_norm"), ("eval", "accuracy"))
    } | {"eval loss": [event["loss"] for event in events if event["event"] == "eval"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "ranks", "micro"), [("ddp", 2, "4"), ("ddp", 4, "8"), ("fsdp", 2, "8")]
)
def test_a_mode_equals_one_process(
    mode: str, ranks: int, micro: str, alone: dict[str, list[float]], tmp_path: Path
) -> None:
    found = figures(run_ranks(ranks, tmp_path, mode=mode, micro_batch=micro, **COMMON))
    for name, values in alone.items():
        assert found[name] == pytest.approx(values, rel=1e-8), name


def _count_padding() -> None:
    """Plant the classic: a loss that is a mean over the padded rectangle, and weights that agree."""
    from trainer.tasks.seqclass import Task

    def loss(_: Task, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            outputs.transpose(1, 2), targets.clamp(min=0), reduction="none"
        ).mean(dim=1)

    Task.loss = loss  # type: ignore[method-assign,assignment]


def _count_samples() -> None:
    """Plant: every sequence counts once in the sum, while the mean is over tokens."""
    from trainer.engine import run

    run.tokens_of = lambda _: None  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [_count_padding, _count_samples])
def test_a_planted_fault_is_seen(
    fault: object, alone: dict[str, list[float]], tmp_path: Path
) -> None:
    events = run_ranks(2, tmp_path, fault, mode="ddp", micro_batch="4", **COMMON)  # type: ignore[arg-type]
    assert figures(events)["loss"] != pytest.approx(alone["loss"], rel=1e-3)


@pytest.mark.slow
def test_seqclass_learns(tmp_path: Path) -> None:
    settings = {"optimizer": "adamw", "lr": "0.02", "global_batch": "64", "steps": "60"}
    common = {"preflight": "off", "eval_steps": "0"}
    events = run_ranks(2, tmp_path, timeout=400, task="seqclass", mode="ddp", **settings, **common)
    # What is in the standard library depends on the version of Python.
    labels = tasks.load(Settings(task="seqclass")).data(train=False).labels
    commonest = float(labels.bincount().max() / len(labels))
    assert events[-1]["accuracy"] > 1.2 * commonest, (events[-1], commonest)
