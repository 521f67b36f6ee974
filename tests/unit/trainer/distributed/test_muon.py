"""Muon with AdamW: each equals torch's own on its parameters, also after a load."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed.muon import Muon, for_muon

COMMON: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3))


def _take_steps(model: nn.Module, optimizers: list[torch.optim.Optimizer], seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for optimizer in optimizers:
            optimizer.step()


def _weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _ours(model: nn.Module) -> Muon:
    return Muon(for_muon([{"params": [*model.parameters()]}], model), momentum=0.9, **COMMON)


def test_matrices_are_muons_and_the_rest_is_adamws() -> None:
    ours, theirs = _model(), _model()
    matrices = {"1.weight", "3.weight"}  # the embedding is a table
    named = dict(theirs.named_parameters())
    muon = torch.optim.Muon(
        [named[name] for name in matrices],
        momentum=0.9,
        adjust_lr_fn="match_rms_adamw",
        **COMMON,
    )
    adamw = torch.optim.AdamW([p for name, p in named.items() if name not in matrices], **COMMON)
    _take_steps(ours, [_ours(ours)], range(3))
    _take_steps(theirs, [muon, adamw], range(3))
    assert all(map(torch.equal, _weights(ours), _weights(theirs)))


def test_a_loaded_state_goes_on() -> None:
    model = _model()
    optimizer = _ours(model)
    _take_steps(model, [optimizer], range(2))
    other = copy.deepcopy(model)
    resumed = _ours(other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _take_steps(model, [optimizer], range(2, 4))
    _take_steps(other, [resumed], range(2, 4))
    assert all(map(torch.equal, _weights(model), _weights(other)))


def test_groups_keep_their_options_and_frozen_parameters_stay_out() -> None:
    model = _model()
    group = {"params": [*model.get_submodule("1").parameters()], "weight_decay": 0.0}
    matrices, rest = for_muon([group], model)
    assert [p.ndim for p in matrices["params"]] == [2]
    assert [p.ndim for p in rest["params"]] == [1]
    assert matrices["weight_decay"] == rest["weight_decay"] == 0.0
