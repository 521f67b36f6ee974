"""Initial weights and frozen weights: what fits is loaded, what does not fit is refused."""

import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.engine.initial import initialise
from trainer.models.gpt import SIZES, Gpt


class Net(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, classes)


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Net()


def filled(module: nn.Module) -> dict[str, Tensor]:
    """Return a state dict of numbers that no initialisation would draw."""
    state = module.state_dict()
    return {name: torch.full_like(tensor, 7 + n) for n, (name, tensor) in enumerate(state.items())}


def loaded(model: nn.Module, **settings: Any) -> dict[str, Tensor]:
    initialise(model, Settings(**settings), is_main=True)
    return model.state_dict()


def refusal(model: nn.Module, **settings: Any) -> tuple[int, str]:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(Fault) as caught:
        initialise(model, Settings(**settings), is_main=True)
    after = model.state_dict()
    assert all(before[name].equal(after[name]) for name in before), "half of a file was loaded"
    assert "\n" not in str(caught.value)
    return caught.value.code, str(caught.value)


def as_safetensors(state: dict[str, Tensor], folder: Path) -> Path:
    save_file(state, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def as_folder(state: dict[str, Tensor], folder: Path) -> Path:
    for number, (name, tensor) in enumerate(state.items()):
        save_file({name: tensor}, folder / f"model-{number}.safetensors")
    return folder


def as_state_dict(state: dict[str, Tensor], folder: Path) -> Path:
    torch.save(state, folder / "weights.pth")
    return folder / "weights.pth"


def as_old_state_dict(state: dict[str, Tensor], folder: Path) -> Path:
    torch.save(state, folder / "weights.pt", _use_new_zipfile_serialization=False)
    return folder / "weights.pt"


def as_checkpoint(state: dict[str, Tensor], folder: Path) -> Path:
    torch.save({"epoch": 3, "state_dict": state}, folder / "last.ckpt")
    return folder / "last.ckpt"


WRITERS = [as_safetensors, as_folder, as_state_dict, as_old_state_dict, as_checkpoint]


@pytest.mark.parametrize("write", WRITERS)
def test_every_kind_of_file_is_read(write: Any, tmp_path: Path) -> None:
    state = filled(Net())
    found = loaded(Net(), init=write(state, tmp_path))
    assert all(found[name].equal(tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("model", "rename"),
    [
        (Net(), "module.{}"),
        (Net(), "module._orig_mod.{}"),
        (Wrapped(), "{}"),
        (Wrapped(), "module.{}"),
    ],
)
def test_a_prefix_of_either_side_is_no_matter(
    model: nn.Module, rename: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = filled(Net())
    file = as_state_dict({rename.format(name): value for name, value in state.items()}, tmp_path)
    with caplog.at_level(logging.INFO, "trainer"):
        found = loaded(model, init=file)
    for name, tensor in state.items():
        assert found[("model." if isinstance(model, Wrapped) else "") + name].equal(tensor)
    assert "9 of the model's 9 tensors" in caplog.text
    assert "of its names is read as" in caplog.text


def test_a_file_from_before_torch_counted_batches_is_read(tmp_path: Path) -> None:
    """Many of torchvision's files are; load_state_dict takes them too."""
    state = filled(Net())
    del state["body.1.num_batches_tracked"]
    found = loaded(Net(), init=as_state_dict(state, tmp_path))
    assert all(found[name].equal(tensor) for name, tensor in state.items())
    assert found["body.1.num_batches_tracked"] == 0


def test_another_head_is_refused_and_may_be_skipped(tmp_path: Path) -> None:
    file = as_state_dict(filled(Net(classes=10)), tmp_path)
    code, message = refusal(Net(), init=file)
    assert code == Exit.CONFIG
    assert "the model has head.weight of shape 3x4, 10x4 there, head.bias of sh" in message
    assert "TRAINER_INIT_SKIP=NAME,NAME* leaves such tensors at their random values" in message
    model = Net()
    head = model.head.weight.detach().clone()
    found = loaded(model, init=file, init_skip="head.*")
    assert found["head.weight"].equal(head)
    assert found["body.0.weight"].eq(7).all()


def test_what_the_file_lacks_is_refused_and_what_is_more_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = filled(Net())
    state["extra"] = state.pop("body.0.bias")
    code, message = refusal(Net(), init=as_state_dict(state, tmp_path))
    assert (code, "it lacks body.0.bias;" in message) == (Exit.CONFIG, True)
    with caplog.at_level(logging.INFO, "trainer"):
        loaded(Net(), init=as_state_dict(state, tmp_path), init_skip="body.0.bias")
    assert "not in the model: extra" in caplog.text


def test_a_tied_tensor_may_be_there_once(tmp_path: Path) -> None:
    model = Gpt(SIZES["tiny"], vocabulary=8, tied=True)
    state = filled(model)
    del state["head.weight"]
    found = loaded(model, init=as_state_dict(state, tmp_path))
    assert found["head.weight"].equal(state["tokens.weight"])


class Task:
    def __init__(self, given: Any) -> None:
        self.given = given

    def initial_weights(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize("as_given", [lambda state, _: state, as_state_dict, as_safetensors])
def test_a_task_gives_a_state_dict_or_a_path_and_a_file_of_the_settings_comes_after(
    as_given: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, model = filled(Net()), Net()
    task = Task(as_given(state, tmp_path))
    with caplog.at_level(logging.INFO, "trainer"):
        initialise(model, Settings(task="mine:Task"), is_main=True, task=task)
    assert all(model.state_dict()[name].equal(tensor) for name, tensor in state.items())
    assert "task mine:Task: initial_weights(): 9 of the model's 9 tensors" in caplog.text
    (tmp_path / "later").mkdir()
    file = as_state_dict({"head.bias": torch.ones(3)}, tmp_path / "later")
    settings = Settings(task="mine:Task", init=str(file), init_skip="body*,head.weight")
    initialise(model, settings, is_main=True, task=task)
    assert model.head.bias.tolist() == [1, 1, 1]
    assert model.state_dict()["body.0.weight"].eq(7).all()


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (
            filled(Net(classes=10)),
            64,
            "initial_weights(): does not fit model Net: the model has head.",
        ),
        (
            None,
            64,
            "initial_weights() returned a None; wanted: a state dict, or the path of a file",
        ),
        ({"epoch": 3}, 65, "initial_weights(): holds no tensors by name"),
        ("/none/weights.pth", 65, "initial_weights(), /none/weights.pth: cannot be read as"),
        (ValueError("oops"), 64, "initial_weights() raised ValueError: oops"),
    ],
)
def test_what_a_task_gives_and_does_not_fit_is_refused(given: Any, code: int, says: str) -> None:
    with pytest.raises(Fault) as caught:
        initialise(Net(), Settings(task="mine:Task"), is_main=True, task=Task(given))
    assert caught.value.code == code
    assert str(caught.value).startswith(f"task mine:Task: {says}")
    assert "\n" not in str(caught.value)


class Malicious:
    def __reduce__(self) -> Any:
        return print, ("this code was run",)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda _: None, "No such file"),
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: path.write_bytes(b"no weights at all"), ""),
        (lambda path: path.mkdir(), "a folder of *.safetensors; python -m trainer.export makes"),
        (lambda path: torch.save({"epoch": 3}, path), "holds no tensors by name"),
        (lambda path: torch.save(torch.zeros(3), path), "holds no tensors by name"),
        (lambda path: torch.save({"a": Malicious()}, path), "UnpicklingError: Weights only load"),
        (lambda path: torch.save(Net(), path), "UnpicklingError: Weights only load"),
        (
            lambda path: torch.save({"model": filled(Net()), "args": Namespace(lr=1)}, path),
            "it holds argparse.Namespace, and only tensors are read from a pickle; save its state dict",
        ),
        (
            lambda path: path.with_suffix(".safetensors").write_bytes(b"\xff" * 99),
            "SafetensorError: ",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_65(
    write: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.pth"
    write(path)
    file = next(iter(tmp_path.iterdir()), path)
    code, message = refusal(Net(), init=file)
    assert code == Exit.DATA
    assert message.startswith(f"TRAINER_INIT={file}: ")
    assert says in message
    assert "this code was run" not in capsys.readouterr().out


def test_frozen_parameters_are_named_by_globs(caplog: pytest.LogCaptureFixture) -> None:
    model = Net()
    with caplog.at_level(logging.INFO, "trainer"):
        loaded(model, freeze="body.0.*, head.bias")
    left = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert left == {"body.1.weight", "body.1.bias", "head.weight"}
    assert "trained: 3 of 6 tensors, 20 of 35 parameters" in caplog.text


@pytest.mark.parametrize("freeze", ["first.*", "second.*", "second.weight"])
def test_a_tied_weight_is_frozen_by_each_of_its_names(
    freeze: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in ("first", "second")})
    model["second"].weight = model["first"].weight
    model["third"] = nn.Linear(3, 1)
    with caplog.at_level(logging.INFO, "trainer"):
        loaded(model, freeze=freeze)
    assert not model["first"].weight.requires_grad
    assert "trained: 2 of 3 tensors, 4 of 13 parameters" in caplog.text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"freeze": "boddy.*"},
            "TRAINER_FREEZE='boddy.*': no tensor of model Net has such a name; it has body.0.weight",
        ),
        (
            {"init_skip": "body.*,heads.*"},
            "TRAINER_INIT_SKIP='heads.*': no tensor of model Net has such a name; it has body.0.weight",
        ),
        ({"freeze": "body.*,head.*"}, "TRAINER_FREEZE=body.*,head.*: leaves nothing to train"),
        ({"freeze": "*"}, "leaves nothing to train"),
    ],
)
def test_a_glob_that_means_nothing_or_all_is_refused(
    settings: dict[str, str], says: str, tmp_path: Path
) -> None:
    model = Net()
    if "init_skip" in settings:
        settings["init"] = str(as_state_dict(filled(Net()), tmp_path))
    code, message = refusal(model, **settings)
    assert code == Exit.CONFIG
    assert says in message
