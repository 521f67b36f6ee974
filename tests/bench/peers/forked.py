"""Steps of bare DistributedDataParallel by many ranks, forked from one process as the trainer's are.

python forked.py RANKS STEPS
"""

import gc
import multiprocessing
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.pool import free_port
from trainer.config.settings import Settings
from trainer.tasks import synthetic

RANKS, STEPS = int(sys.argv[1]), int(sys.argv[2])


def train(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    most = timedelta(minutes=10)
    store = dist.TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0, timeout=most)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    net = DistributedDataParallel(synthetic.Task(Settings()).model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.randn(1, 64), torch.zeros(1, dtype=torch.long)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), targets).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    dist.barrier()
    os._exit(0)  # without waiting for the connections of other ranks


port = free_port()
gc.freeze()
context = multiprocessing.get_context("fork")
children = [context.Process(target=train, args=(rank, port)) for rank in range(RANKS)]
for child in children:
    child.start()
for child in children:
    child.join()
sys.exit(any(child.exitcode for child in children))
