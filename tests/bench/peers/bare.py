"""The fewest lines of PyTorch; under torchrun with DistributedDataParallel, or as BENCH_MODE says.

BENCH_MODE=fsdp shards by fully_shard, block by block; tp splits the layers as torch's tutorial on tensor
parallelism does, without sequence parallelism.
BENCH_LOOP=same clips the gradient and follows a schedule, so that it trains as its peers do.
BENCH_MICRO=4 accumulates micro-batches of four. BENCH_COMPILE=yes compiles the net.
"""

import os

import torch
import torch.distributed as dist
import training
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from turn import Turns


def join():
    # After a restart init_process_group("gloo") of torch 2.15 finds the old ranks' addresses in the
    # agent's store, and fails: tried four times, two with each rendezvous.
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], dist.TCPStore(*place))
    ranks = training.RANK, training.WORLD_SIZE
    dist.init_process_group("gloo", store=store, rank=ranks[0], world_size=ranks[1])


def distributed(net):
    join()
    mode = os.environ.get("BENCH_MODE")
    if mode == "fsdp":
        for block in getattr(net, "blocks", ()):
            fully_shard(block)
        return fully_shard(net)
    if mode != "tp":
        return DistributedDataParallel(net)
    columns = dict.fromkeys(("queries", "keys", "values", "gate", "up"), ColwiseParallel())
    split = columns | {"mix": RowwiseParallel(), "down": RowwiseParallel()}
    plan = {
        f"blocks.{number}.{name}": style
        for number in range(len(net.blocks))
        for name, style in split.items()
    }
    plan["tokens"] = RowwiseParallel(input_layouts=Replicate())
    plan["head"] = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(net, init_device_mesh("cpu", (training.WORLD_SIZE,)), plan)


same = os.environ.get("BENCH_LOOP") == "same"
micro = int(os.environ.get("BENCH_MICRO", training.BATCH))
parts = training.BATCH // micro
net = training.net
if training.WORLD_SIZE > 1:
    net = distributed(net)
if os.environ.get("BENCH_COMPILE"):
    net = torch.compile(net)
optimizer = training.optimizer_of(net)
schedule = training.schedule(optimizer)
turns = Turns()
for step, (inputs, targets) in enumerate(training.batches()):
    optimizer.zero_grad()
    total = 0
    for some, wanted in zip(inputs.split(micro), targets.split(micro), strict=True):
        loss = training.loss_of(net(some), wanted) / parts
        loss.backward()
        total = total + loss.detach()
    if same:
        nn.utils.clip_grad_norm_(net.parameters(), training.CLIP)
    optimizer.step()
    if same:
        schedule.step()
    if step % training.LOG_STEPS == 0:
        total.item()
    turns.step()
