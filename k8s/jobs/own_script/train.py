"""A script that knows nothing of muster: a line fitted with DistributedDataParallel.

torchrun --nproc-per-node 2 k8s/jobs/own_script/train.py --steps 200
"""

import argparse
import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_NOT_FINITE = 3
_EVERY = 10  # steps between two lines, and two checkpoints


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    file = Path(os.environ.get("MUSTER_CHECKPOINTS", ".")) / "model.pt"
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    draw = torch.Generator().manual_seed(1000 * dist.get_rank() + first)
    for step in range(first + 1, steps + 1):
        x = torch.rand(32, 1, generator=draw)
        loss = nn.functional.mse_loss(model(x), 3 * x - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not math.isfinite(loss.item()):
            return _NOT_FINITE
        if step % _EVERY == 0 and dist.get_rank() == 0:
            print(f"step={step} loss={loss.item():.6f}", flush=True)
            new = file.with_suffix(".new")
            torch.save({"model": model.state_dict(), "step": step}, new)
            new.replace(file)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
