"""The fewest lines of PyTorch for a pipeline: torch.distributed.pipelining's 1F1B, under torchrun.

A rank has an equal share of the tiny GPT's blocks. BENCH_MICRO: samples of a micro-batch.
BENCH_LOOP=same clips by the norm over all stages and follows a schedule, as its peers do.
"""

import os

import torch.distributed as dist
import training
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from turn import Turns

dist.init_process_group("gloo")
rank, ranks = training.RANK, training.WORLD_SIZE
net, micro = training.net, int(os.environ["BENCH_MICRO"])
share = len(net.blocks) // ranks
layers = [*net.blocks[rank * share : (rank + 1) * share]]
if rank == 0:
    layers.insert(0, net.tokens)
if rank == ranks - 1:
    layers += [net.norm, net.head]
part = nn.Sequential(*layers)
stage = PipelineStage(part, rank, ranks, training.torch.device("cpu"))
schedule = Schedule1F1B(stage, training.BATCH // micro, loss_fn=training.loss_of)
optimizer = training.optimizer_of(part)
schedule_of_rate = training.schedule(optimizer)
same = os.environ.get("BENCH_LOOP") == "same"
turns = Turns()
for step, (inputs, targets) in enumerate(training.batches()):
    optimizer.zero_grad()
    losses = []
    if rank == 0:
        schedule.step(inputs)
    elif rank == ranks - 1:
        schedule.step(target=targets, losses=losses)
    else:
        schedule.step()
    if same:
        parameters = [*part.parameters()]
        square = nn.utils.get_total_norm(each.grad for each in parameters) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(parameters, training.CLIP, square.sqrt())
    optimizer.step()
    if same:
        schedule_of_rate.step()
    if losses and step % training.LOG_STEPS == 0:
        sum(losses).item()
    turns.step()
