"""Saves or loads a net of 13 M parameters with its momentum (100 MB), once per turn.

python saving.py save|blocked|load muster|torch|dcp

With `blocked`, the time of a turn ends when the training may continue. `load` reads what another
process has saved.
"""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from turn import Turns

from trainer.checkpoint.find import complete
from trainer.checkpoint.manifest import Progress, name_of
from trainer.checkpoint.read import load
from trainer.checkpoint.state import capture
from trainer.checkpoint.write import Label
from trainer.config.settings import Settings
from trainer.distributed.runtime import join
from trainer.engine.resume import saving_to

FOLDER = Path(os.environ["BENCH_FOLDER"])
net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
net(torch.ones(1, 1024)).sum().backward()
optimizer.step()


def muster(number):
    """Start to save; return what waits until the state may change, and until it is on disk."""
    saver.wait()
    label = Label(Progress(number, number, "bench", 0, 32), "single", 1)
    saver.begin(capture(net, optimizer, {}), label, since=time.monotonic())
    return saver.wait_for_copy, saver.wait


def muster_load(number):
    load(
        complete(f"{FOLDER}/run/checkpoints/{name_of(number)}"), net, optimizer, {}, runtime=runtime
    )


def by_torch(number):
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, FOLDER / f"{number % 2}.pt")
    return (lambda: None), (lambda: None)


def by_torch_load(number):
    state = torch.load(FOLDER / f"{number % 2}.pt", weights_only=True)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def by_dcp(number):
    """As documented: it returns when the state is copied."""
    model, optimiser = get_state_dict(net, optimizer)
    state = {"model": model, "optimizer": optimiser}
    saving = dcp.async_save(state, checkpoint_id=FOLDER / f"dcp{number % 2}")
    return (lambda: None), saving.result


action, whose = sys.argv[1:]
if whose == "dcp":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
begin = {"muster": muster, "torch": by_torch, "dcp": by_dcp}[whose]
reload = {"muster": muster_load, "torch": by_torch_load}.get(whose)
with (
    join(Settings(out=FOLDER / "run")) as runtime,
    saving_to(Settings(out=FOLDER / "run"), runtime) as saver,
):
    if action == "load":
        subprocess.run([sys.executable, __file__, "make", whose], check=True)
    else:
        begin(1)[1]()
    if action == "make":  # for `load`
        sys.exit()
    gc.freeze()  # as in the trainer; a collection would happen in a random turn
    turns = Turns()
    for number in range(2, 10**6):
        if action == "load":
            reload(1)
            turns.step()
            continue
        may_change, on_disk = begin(number)
        may_change()
        if action == "save":
            on_disk()
        turns.step(rest=on_disk)
