"""The task tokens: files of tokens as nanoGPT writes them, and the GPT on them."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import InMemory
from trainer.data.task_contract import metric_of
from trainer.models.chain import pieces_of
from trainer.models.gpt import SIZES, Gpt
from trainer.tasks.parts.token_files import open_files

LENGTH = SIZES["tiny"].length


def written(folder: Path, *, dtype: str = "uint16", count: int = 1000) -> Path:
    """Write tokens 0, 1, 2 ... as train.bin and val.bin."""
    for name in ("train.bin", "val.bin"):
        np.arange(count, dtype=dtype).tofile(folder / name)
    return folder


def first_window(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    data = tasks.load(Settings(task="tokens", data=folder)).data(train=True)
    assert isinstance(data, InMemory)
    inputs, targets = data.batch(torch.tensor([0]))
    return inputs, targets


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_each_token_is_a_target_once(dtype: str, tmp_path: Path) -> None:
    if dtype != "uint16":
        meta = {"dtype": dtype, "vocabulary": 256}
        (tmp_path / "meta.json").write_text(json.dumps(meta))
    files = open_files(written(tmp_path, dtype=dtype, count=256), 10)
    inputs, targets = files.train.batch(torch.arange(len(files.train)))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.flatten().tolist() == list(range(250))
    assert targets.flatten().tolist() == list(range(1, 251))


def test_a_set_is_pickled_as_the_name_of_its_file(tmp_path: Path) -> None:
    files = open_files(written(tmp_path, count=60_000), 10)
    assert len(pickle.dumps(files.train)) < 500
    copied = pickle.loads(pickle.dumps(files.train))  # noqa: S301
    (inputs, _), (same, _) = (s.batch(torch.tensor([7, 2])) for s in (files.train, copied))
    assert inputs.equal(same)


@pytest.mark.parametrize(
    ("meta", "count", "says"),
    [
        (None, 0, "train.bin has 0 bytes; a window of 128 tokens of uint16 needs 258"),
        (None, 128, "train.bin has 256 bytes"),
        ('{"dtype": "uint32"}', 129, "train.bin has 258 bytes; a window of 128 tokens of uint32"),
        ('{"dtype": "float32"}', 500, "dtype='float32', vocabulary=50304: dtype is one of uint8"),
        ('{"vocabulary": true}', 500, "vocabulary=True"),
        ('{"vocabulary": 1}', 500, "vocabulary=1"),
        ("[]", 500, "meta.json: not a JSON object"),
        ("{", 500, "meta.json: not a JSON object"),
        ('{"vocabulary": 100}', 500, "token 128 is outside the vocabulary of 100"),
    ],
)
def test_bad_files_are_65(meta: str | None, count: int, says: str, tmp_path: Path) -> None:
    written(tmp_path, count=count)
    if meta is not None:
        (tmp_path / "meta.json").write_text(meta)
    with pytest.raises(Fault) as caught:
        first_window(tmp_path)
    assert caught.value.code == Exit.DATA
    assert says in str(caught.value)


def test_a_vocabulary_in_a_pickle_is_65_and_says_where_to_write_it(tmp_path: Path) -> None:
    (written(tmp_path) / "meta.pkl").touch()
    with pytest.raises(
        Fault, match=r'write its vocab_size to meta.json, e.g. {"vocabulary"'
    ) as caught:
        tasks.load(Settings(task="tokens", data=tmp_path))
    assert caught.value.code == Exit.DATA
    (tmp_path / "meta.json").write_text('{"vocabulary": 500}')
    first_window(tmp_path)


def test_a_missing_file_is_65(tmp_path: Path) -> None:
    (written(tmp_path) / "val.bin").unlink()
    with pytest.raises(Fault, match="val.bin is missing") as caught:
        tasks.load(Settings(task="tokens", data=tmp_path))
    assert caught.value.code == Exit.DATA


def test_an_unknown_size_is_64() -> None:
    with pytest.raises(Fault, match="TRAINER_MODEL='7b': task tokens has tiny, 124m") as caught:
        tasks.load(Settings(task="tokens", model="7b"))
    assert caught.value.code == Exit.CONFIG


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("124m-tied", 124e6), ("124m", 162e6), ("350m-tied", 355e6), ("1b-tied", 1.32e9)],
)
def test_sizes(name: str, parameters: float, tmp_path: Path) -> None:
    task = tasks.load(Settings(task="tokens", model=name, data=written(tmp_path, count=5000)))
    with torch.device("meta"):
        model = task.model()
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == pytest.approx(parameters, rel=0.01)


def test_a_logit_depends_on_its_own_and_former_tokens_and_on_their_places() -> None:
    torch.manual_seed(0)
    model = Gpt(SIZES["tiny"], vocabulary=256).eval()
    text = torch.randint(0, 256, (1, LENGTH))
    changed = text.clone()
    changed[0, 50] = (text[0, 50] + 1) % 256
    with torch.no_grad():
        before, after = model(text)[0], model(changed)[0]
        swapped = model(text[:, [1, 0, *range(2, LENGTH)]])[0]
    assert before[:50].equal(after[:50])
    assert not before[50:].isclose(after[50:], atol=1e-6).all(dim=-1).any()
    assert not before[2].isclose(swapped[2], atol=1e-6).all()


def test_a_tied_model_is_not_cut() -> None:
    model = Gpt(SIZES["tiny"], vocabulary=256, tied=True)
    with pytest.raises(Fault, match="2 of its pieces have tokens.weight") as caught:
        pieces_of(model)
    assert caught.value.code == Exit.CONFIG


@pytest.mark.slow
def test_tiny_learns_the_standard_librarys_source(start: Any) -> None:
    settings = {"TRAINER_STEPS": "60", "TRAINER_GLOBAL_BATCH": "8", "TRAINER_EVAL_STEPS": "0"}
    ended = start("-m", "trainer", TRAINER_TASK="tokens", TRAINER_LOG="json", **settings).end()
    assert ended.code == 0, ended.stderr
    (evaluation,) = ended.of("eval")
    assert evaluation["loss"] < 2.8  # nats a byte; ln 256 = 5.5 for one that has learned nothing


@pytest.mark.slow
def test_124m_takes_real_steps(start: Any, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).zipf(1.3, 20_000) % 50_000  # a few are frequent, like words
    for name in ("train.bin", "val.bin"):
        tokens[: 20_000 if name == "train.bin" else 1_025].astype("uint16").tofile(tmp_path / name)
    settings = {"TRAINER_MODEL": "124m-tied", "TRAINER_DATA": str(tmp_path), "TRAINER_STEPS": "2"}
    settings |= {
        "TRAINER_GLOBAL_BATCH": "1",
        "TRAINER_CHECKPOINT_STEPS": "0",
        "TRAINER_EVAL_STEPS": "0",
    }
    settings |= {"TRAINER_LOG": "json", "TRAINER_LOG_STEPS": "1", "TRAINER_OUT": str(tmp_path)}
    ended = start("-m", "trainer", TRAINER_TASK="tokens", **settings).end()
    assert ended.code == 0, ended.stderr
    (launch,), steps = ended.of("launch"), ended.of("step")
    assert launch["parameters"] == pytest.approx(124e6, rel=0.01)
    assert steps[0]["loss"] == pytest.approx(10.8, abs=0.3)  # ln 50,304, for an untrained model
    assert steps[-1]["loss"] < steps[0]["loss"] - 1


def test_a_perplexity_without_bound_is_infinite() -> None:
    task = tasks.load(Settings(task="tokens"))
    assert metric_of(task, "perplexity", 2.0) == pytest.approx(7.389, rel=1e-4)
    assert metric_of(task, "perplexity", 1e4) == float("inf")
    assert metric_of(task, "accuracy", 0.5) == 0.5
