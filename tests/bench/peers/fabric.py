"""Lightning Fabric, as in https://lightning.ai/docs/fabric/stable/fundamentals/convert.html"""

import torch.nn.functional as F
import training
from lightning_fabric import Fabric
from turn import Turns

fabric = Fabric(accelerator="cpu", devices=1)
net, optimizer = fabric.setup(training.net, training.optimizer_of(training.net))
schedule = training.schedule(optimizer)
turns = Turns()
for step, (inputs, targets) in enumerate(training.batches()):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(inputs), targets)
    fabric.backward(loss)
    fabric.clip_gradients(net, optimizer, max_norm=training.CLIP)
    optimizer.step()
    schedule.step()
    if step % training.LOG_STEPS == 0:
        loss.item()
    turns.step()
