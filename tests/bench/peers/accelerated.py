"""accelerate, as in https://huggingface.co/docs/accelerate/basic_tutorials/migration"""

import torch.nn.functional as F
import training
from accelerate import Accelerator
from turn import Turns

accelerator = Accelerator(cpu=True)
optimizer = training.optimizer_of(training.net)
net, optimizer, schedule = accelerator.prepare(
    training.net, optimizer, training.schedule(optimizer)
)
turns = Turns()
for step, (inputs, targets) in enumerate(training.batches()):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(inputs), targets)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(net.parameters(), training.CLIP)
    optimizer.step()
    schedule.step()
    if step % training.LOG_STEPS == 0:
        loss.item()
    turns.step()
