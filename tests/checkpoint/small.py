"""A small state that is a pure function of its step, saved and loaded by a world of one."""

from pathlib import Path

import torch
from torch import nn

from trainer.checkpoint.find import Found, find
from trainer.checkpoint.manifest import Progress, name_of
from trainer.checkpoint.read import load
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.state import capture
from trainer.checkpoint.store import store_at
from trainer.checkpoint.write import Label, write
from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime
from trainer.plan.sizing import size

ALONE = Runtime(
    0, 0, torch.device("cpu"), "none", size(Settings(), 1, label=str), None, None, data_rank=0
)
_KEEP = Keep(3)
Trained = tuple[nn.Module, torch.optim.Optimizer]


def trained(steps: int) -> Trained:
    """Return the model after `steps` steps; after sixteen it starts over, to be quick."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(min(steps, 1 + steps % 16)):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def label(step: int, metric: float | None = None) -> Label:
    return Label(Progress(step, step * 64, "digits", 0, 64), "single", 1, metric)


def save(folder: Path | str, step: int, *, keep: Keep = _KEEP, metric: float | None = None) -> str:
    """Save the state after `step` steps and return where."""
    store = store_at(folder)
    write(capture(*trained(step), {}), label(step, metric), store, keep, group=None)
    return store.where(name_of(step))


def found(folder: Path | str, resume: str = "auto") -> Found | None:
    return find(resume, store_at(folder), runtime=ALONE)


def loaded(checkpoint: Found) -> Trained:
    model, optimizer = trained(0)
    load(checkpoint, model, optimizer, {}, runtime=ALONE)
    return model, optimizer


def equal(mine: Trained, theirs: Trained) -> bool:
    """Whether weights and momentum are the same bit by bit."""
    pairs = zip(mine[0].parameters(), theirs[0].parameters(), strict=True)
    return all(
        torch.equal(a, b)
        and torch.equal(
            *(
                state.get("momentum_buffer", torch.zeros(()))
                for state in (mine[1].state[a], theirs[1].state[b])
            )
        )
        for a, b in pairs
    )
