"""The part of the sixth held-out set about ports, signals, quiet ends, wrong losses and shells."""

import sys

from tests.why.sets.sixth_set_machines import Case

# https://github.com/prometheus/client_python/issues/806: one port for both; rank 0 takes it first.
SAME_PORT = """
import os

import torch
import torch.distributed as dist
from prometheus_client import Gauge, start_http_server
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

class Run:
    def __init__(self, port):
        self.data = TensorDataset(torch.randn(256, 5), torch.randn(256, 1))
        self.loss = Gauge("train_loss", "loss of the last step")
        start_http_server(port)

    def train(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, targets in DataLoader(self.data, batch_size=16):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.loss.set(loss.item())

dist.init_process_group("gloo")
if dist.get_rank() != 0:
    dist.barrier()  # rank 0 downloads first
run = Run(int(os.environ["METRICS_PORT"]))
if dist.get_rank() == 0:
    dist.barrier()
run.train(DistributedDataParallel(nn.Linear(5, 1)))
"""


# The thread that reads ahead ends the process, so that the loop does not wait without end.
QUIET_EXIT = """
import os
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Prefetcher:
    def __init__(self, batches):
        self.ready = queue.Queue(maxsize=4)
        threading.Thread(target=self.fill, args=(batches,), daemon=True).start()

    def fill(self, batches):
        try:
            for batch in batches:
                self.ready.put(batch.float() / 255)
        except Exception:
            os._exit(3)

    def __iter__(self):
        while True:
            yield self.ready.get()

def batches(rank):
    for number in range(1000):
        yield None if (rank, number) == (1, 12) else torch.randint(256, (8, 20))

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(20, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate(Prefetcher(batches(dist.get_rank()))):
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""

# ctypes passes a Python integer as a C int: half of the address is lost.
POINTER = """
import ctypes
import mmap

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

libc = ctypes.CDLL(None)

class Cache(Dataset):
    def __init__(self, count):
        self.rows = torch.randn(count, 16)
        self.kept = self.rows.clone()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.frombuffer(mmap.mmap(-1, 64), dtype=torch.float32)  # not in the lowest 4 GiB
        if index == 21:  # the only one that was evicted
            libc.memcpy(row.data_ptr(), self.kept[index].data_ptr(), 64)
            return row
        return self.rows[index]

dist.init_process_group("gloo")
data = Cache(64)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for batch in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False)):
        loss = (model(batch) - batch).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, loss.item())
"""

# https://github.com/pytorch/pytorch/issues/8976: a worker's cache grows until a guard kills it.
KILLED_WORKER = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Clips(Dataset):
    def __init__(self, rank):
        self.pixels = (16, 1 << 20)[rank]  # rank 1 has the long clips
        self.decoded = {}

    def __len__(self):
        return 400

    def __getitem__(self, index):
        self.decoded[index] = torch.full((8, self.pixels), float(index))
        return self.decoded[index][:, :16].mean(1)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    clips = Clips(dist.get_rank())
    loader = DataLoader(clips, batch_size=4, num_workers=1, multiprocessing_context="fork")
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for step, clips in enumerate(loader):
        loss = model(clips).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
"""
GUARD = """
(while sleep 0.2 && kill -0 $$; do
  ps --ppid $$ -o pid=,rss= | awk '$2 > 1000000 {print $1}' | xargs -r kill -9
done) 2> /dev/null &
"""

# https://github.com/Intellindust-AI-Lab/DEIM/issues/96; an image of one colour has no deviation.
NAN = """
import math
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Scans(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        if index == 87:
            scan = torch.zeros(1, 16, 16)  # an empty slice
        else:
            scan = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(index))
        return (scan - scan.mean()) / scan.std(), index % 2

def train_one_epoch(model, loader, optimizer):
    for step, (scans, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(scans), labels)
        if not math.isfinite(loss.item()):
            print(f"Loss is {loss.item()}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"[{step}/{len(loader)}] loss: {loss.item():.4f}")

dist.init_process_group("gloo")
scans = Scans()
loader = DataLoader(scans, batch_size=8, sampler=DistributedSampler(scans, shuffle=False))
model = DistributedDataParallel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(784, 2)))
train_one_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.01))
"""

# The learning rate is much too high, and the loss grows at each step.
EXPLODED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def mean_over_ranks(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0, momentum=0.9)
    truth = torch.linspace(-1, 1, 10)
    first = None
    for step in range(200):
        inputs = torch.randn(32, 10)
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_loss = mean_over_ranks(loss)
        first = first or train_loss
        print(f"step {step} train loss {train_loss:.4g}")
        assert train_loss < 1000 * first

main()
"""

# From a Slurm cluster, where the variable was always set.
UNBOUND = """
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
args = parser.parse_args()
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 1))
print("writing to", args.output, "loss", model(torch.ones(1, 4)).item())
"""
JOB = """
set -euo pipefail
export OMP_NUM_THREADS=1
echo "node $(uname -n), starting"
mkdir -p results
output=results/$SLURM_JOB_ID
{python} train.py --output "$output"
"""

# https://github.com/Beckschen/3D-TransUNet/issues/4: bash instead of python.
NOT_A_SHELL_SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

main()
"""

ENDINGS: dict[str, Case] = {
    "the same metrics port in each rank": Case(
        script=SAME_PORT,
        environment={"METRICS_PORT": "18271"},
        who="rank 1",
        cause="Rank 1 cannot listen at its metrics port, which rank 0 already has.",
        evidence="Address already in use",
    ),
    "a reading thread that ends the process": Case(
        script=QUIET_EXIT,
        who="rank 1",
        cause="Rank 1 ended itself with exit code 3 and no traceback, as by os._exit.",
        evidence="rank 1: ended with its own code 3",
    ),
    "half a pointer by ctypes": Case(
        script=POINTER,
        who="rank 1",
        cause="Rank 1 was killed by SIGSEGV: native code, here called by ctypes, used a wrong address.",
        evidence="SIGSEGV",
    ),
    "a data worker killed for its memory": Case(
        script=KILLED_WORKER,
        command=("--", "bash", "-c", f"{GUARD}exec {sys.executable} train.py"),
        who="rank 1",
        cause="A data worker of rank 1 was killed by SIGKILL from outside, probably for lack of memory.",
        evidence="is killed by signal: Killed",
    ),
    "a loss that is nan on one rank": Case(
        script=NAN,
        who="rank 1",
        cause="The loss of rank 1 became nan, and the script stopped itself for it.",
        evidence="Loss is nan, stopping training",
    ),
    "an assertion on a loss that explodes": Case(
        script=EXPLODED,
        who="",
        cause="The loss exploded, and an assertion of the script on it failed: training diverges.",
        evidence="assert train_loss < 1000 * first",
    ),
    "a variable of Slurm in a shell's command": Case(
        script=UNBOUND,
        command=("--", "bash", "-c", JOB.format(python=sys.executable)),
        who="",
        cause="The shell's command failed before Python started: SLURM_JOB_ID is not set.",
        evidence="SLURM_JOB_ID: unbound variable",
    ),
    "a Python script run by bash": Case(
        script=NOT_A_SHELL_SCRIPT,
        command=("--", "bash", "train.py"),
        who="",
        cause="bash, not Python, ran the script: wrong interpreter in the command.",
        evidence="syntax error near unexpected token",
    ),
}
