"""The part of the sixth held-out set about rendezvous and about a machine's resources."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script that fails; `who` failed first ("": any rank), `evidence` is in the line to quote."""

    script: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    who: str
    cause: str
    evidence: str


# https://github.com/huggingface/transformers/issues/21689: a scheduler saved whole, with its lambda.
LAMBDA = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warmup = 5
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    for step in range(1, 31):
        loss = (model(torch.randn(4, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
            if dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "scheduler": scheduler}, f"step-{step}.pt")
            dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""

# https://github.com/OpenRLHF/OpenRLHF/issues/1040: the world size of another machine.
WORLD_SIZE = """
import argparse
import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--world-size", type=int, default=4, help="number of GPUs")
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()
dist.init_process_group(
    "gloo",
    rank=int(os.environ["RANK"]),
    world_size=args.world_size,
    timeout=datetime.timedelta(seconds=8),
)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(args.steps):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
"""

# Shards of different length, streamed without Join: the rank with the short one is done early.
SHORT_SHARD = """
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    lengths = (64, 40)

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.rank)
        for _ in range(self.lengths[self.rank]):
            yield torch.randn(10, generator=generator)

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 10)))
optimizer = torch.optim.Adam(model.parameters())
for step, batch in enumerate(DataLoader(Stream(rank), batch_size=4)):
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
print("end of data, finished")
sys.stdout.flush()
os._exit(0)  # gloo's threads may abort at exit
"""

# https://github.com/pytorch/pytorch/issues/122903: a full state dict is a collective of all ranks.
FSDP_SAVE = """
import datetime
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
patient = dist.new_group(timeout=datetime.timedelta(seconds=5))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)])
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for step in range(8):
        loss = model(torch.randn(4, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        time.sleep(1)  # draws the curves
        with open("curve.json", "a") as file:
            json.dump({"epoch": epoch, "loss": loss.item()}, file)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        torch.save(get_model_state_dict(model, options=options), f"epoch-{epoch}.pt")
    dist.barrier(patient)
"""

# https://github.com/pytorch/pytorch/issues/973: tensors from workers keep a descriptor each.
DESCRIPTORS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def loader_of(count):
    data = TensorDataset(torch.randn(count, 6), torch.randint(3, (count,)))
    sampler = DistributedSampler(data)
    return DataLoader(data, 4, sampler=sampler, num_workers=1, multiprocessing_context="fork")

def validate(model, loader):
    outputs, targets = [], []
    for inputs, labels in loader:
        outputs.append(model.module(inputs).argmax(1))
        targets.append(labels)
    return (torch.cat(outputs) == torch.cat(targets)).float().mean()

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, labels in loader_of(80):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f} accuracy {validate(model, loader_of(4000)):.3f}")
"""

# https://github.com/innnky/so-vits-svc/issues/46: no space for a checkpoint, here by ulimit -f.
QUOTA = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 512)), torch.randint(10, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "weights.pt")
        torch.save(optimizer.state_dict(), "optimizer.pt")
    dist.barrier()
"""

# All distances at once for hard negatives: the broadcast makes an array of n x n x d.
DISTANCES = """
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def hardest_negatives(embeddings, labels):
    distances = np.linalg.norm(embeddings[:, None] - embeddings[None], axis=-1)
    distances[labels[:, None] == labels[None]] = np.inf
    return distances.argmin(axis=1)

def main():
    dist.init_process_group("gloo")
    rng = np.random.default_rng(dist.get_rank())
    features, labels = rng.standard_normal((40_000, 16)), rng.integers(0, 100, 40_000)
    model = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.from_numpy(features).float()
    for epoch in range(3):
        with torch.no_grad():
            embedded = model.module(inputs).double().numpy()
        negatives = hardest_negatives(embedded, labels)
        for batch in range(0, 512, 64):
            pulled, pushed = model(inputs[batch : batch + 64]), inputs[negatives[batch : batch + 64]]
            loss = nn.functional.relu(1 - (pulled - pushed).norm(dim=1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

main()
"""

# https://github.com/facebookresearch/pytorch3d/issues/899: built for a CUDA that is not installed.
OLD_CUDA = """
import ctypes

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class FusedNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.runtime = ctypes.CDLL("libcudart.so.10.1")

    def forward(self, x):
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()

def build(width=32):
    return nn.Sequential(nn.Linear(8, width), FusedNorm(width), nn.Linear(width, 1))

if __name__ == "__main__":
    dist.init_process_group("gloo")
    print("building the model")
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
"""


def limited(option: str, value: int) -> tuple[str, ...]:
    """A command that runs the script in a shell whose ulimit is lower."""
    return ("--", "bash", "-c", f"ulimit {option} {value} && exec {sys.executable} train.py")


MACHINES: dict[str, Case] = {
    "a checkpoint with a lambda in it": Case(
        script=LAMBDA,
        who="rank 0",
        cause="Rank 0 cannot save its checkpoint, as pickle refuses the lambda of its scheduler.",
        evidence="main.<locals>.<lambda>",
    ),
    "the world size of another machine": Case(
        script=WORLD_SIZE,
        who="",
        cause="The process group waits for 4 ranks, but the run has 2: the world size is set wrong.",
        evidence="2/4 clients joined",
    ),
    "a shard that ends early": Case(
        script=SHORT_SHARD,
        who="rank 0",
        cause="Rank 1 had fewer batches and ended with 0 before; rank 0 lost it in an all-reduce.",
        evidence="by peer",
    ),
    "FSDP weights gathered on rank 0 only": Case(
        script=FSDP_SAVE,
        who="rank 1",
        cause="Rank 1 waited 5 s in a barrier for rank 0, which is in another collective: it alone "
        "gathers the state dict of FSDP.",
        evidence="Timed out waiting 5000ms",
    ),
    "descriptors kept by tensors of workers": Case(
        script=DESCRIPTORS,
        command=limited("-n", 256),
        who="",
        cause="The process has too many open files: tensors from data workers keep a descriptor each.",
        evidence="Too many open files",
    ),
    "a checkpoint over the limit of file sizes": Case(
        script=QUOTA,
        command=limited("-f", 4096),
        who="rank 0",
        cause="Rank 0 cannot write its checkpoint to the end: no space, or a limit of file sizes.",
        evidence="unexpected pos",
    ),
    "an array that does not fit in memory": Case(
        script=DISTANCES,
        command=limited("-v", 30_000_000),
        who="",
        cause="NumPy could not get 191 GiB of main memory for an array of all distances.",
        evidence="Unable to allocate",
    ),
    "a library of another CUDA": Case(
        script=OLD_CUDA,
        who="",
        cause="The shared library libcudart.so.10.1 is missing: it is of another CUDA.",
        evidence="libcudart.so.10.1: cannot open shared object file",
    ),
}
