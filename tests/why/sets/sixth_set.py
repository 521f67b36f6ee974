"""The sixth held-out set: 24 failed runs, written before their diagnosis was seen.

A script is saved as `train.py` in an empty folder, which is the current folder. The run is
`python -m trainer.launch --nproc-per-node 2` and the command; without one it is `train.py`.
"""

from tests.why.sets.sixth_set_endings import ENDINGS
from tests.why.sets.sixth_set_machines import MACHINES, Case

# https://github.com/Media-Smart/vedastr/issues/72: a download that broke off.
TRUNCATED_IMAGE = """
import io

import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.transforms.functional import to_tensor

class Photos(Dataset):
    def __init__(self):
        picture = io.BytesIO()
        Image.effect_noise((64, 64), 40).convert("RGB").save(picture, "JPEG")
        self.records = [picture.getvalue()] * 64
        self.records[37] = self.records[37][:900]  # as its download left it

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.records[index])).convert("RGB")
        return to_tensor(image), index % 10

dist.init_process_group("gloo")
sampler = DistributedSampler(photos := Photos(), shuffle=False)
loader = DataLoader(photos, 8, sampler=sampler, num_workers=2, multiprocessing_context="fork")
model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (images, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
"""

# https://github.com/pytorch/pytorch/issues/95917: grey images among coloured ones.
GREY_IMAGE = """
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms

class Caltech(Dataset):
    transform = transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()])

    def __len__(self):
        return 96

    def __getitem__(self, index):
        image = Image.new("L" if index == 44 else "RGB", (60, 48))
        return self.transform(image), index % 5

dist.init_process_group("gloo")
data = Caltech()
sampler = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, 8, sampler=sampler, num_workers=1, multiprocessing_context="fork")
model = DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(7200, 5)))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
"""

# https://github.com/huggingface/transformers/issues/7160: one layer, used in several checkpoints.
SHARED_LAYER = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

class Albert(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layer = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, 100)

    def forward(self, ids):
        hidden = self.embed(ids)
        for _ in range(4):  # one layer, used again and again
            hidden = checkpoint(self.layer, hidden, use_reentrant=True)
        return self.head(hidden)

dist.init_process_group("gloo")
model = DistributedDataParallel(Albert())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    ids = torch.randint(100, (4, 12))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
"""

# https://github.com/mosaicml/composer/issues/1002: the backbone is frozen for the second phase.
FROZEN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def fit(freeze, resume=None):
    backbone = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
    net = nn.Sequential(backbone, nn.Linear(40, 3))
    backbone.requires_grad_(not freeze)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    if resume:
        state = torch.load(resume)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for _ in range(10):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.randint(3, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
    dist.barrier()

dist.init_process_group("gloo")
fit(freeze=False)
print("phase 1 done, phase 2 trains the head alone")
fit(freeze=True, resume="last.pt")
"""

# https://github.com/modelscope/ms-swift/issues/5808: torch 2.6 made weights_only the default.
NAMESPACE = """
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

def best(losses):
    state = torch.load(f"epoch-{losses.index(min(losses))}.pth", map_location="cpu")
    model.load_state_dict(state["model"])
    return state["args"]

losses = []
for epoch in range(4):
    loss = model(torch.ones(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "args": args}, f"epoch-{epoch}.pth")
    dist.barrier()
print("best epoch was trained with", best(losses))
"""

# https://github.com/hiyouga/LlamaFactory/issues/4149: YAML 1.1 wants a dot in 1.0e-4.
YAML_FLOAT = '''
import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONFIG = """
model: {width: 64, depth: 2}
optimizer: {name: AdamW, lr: 3e-4, weight_decay: 0.05}
train: {epochs: 2, batch: 32}
"""

def build(width, depth):
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 1))

def make_optimizer(config, model):
    options = dict(config["optimizer"])
    return getattr(torch.optim, options.pop("name"))(model.parameters(), **options)

config = yaml.safe_load(CONFIG)
dist.init_process_group("gloo")
model = DistributedDataParallel(build(**config["model"]))
optimizer = make_optimizer(config, model)
for epoch in range(config["train"]["epochs"]):
    loss = model(torch.randn(config["train"]["batch"], 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
'''

# A corpus of several exports, one of which is Latin-1.
LATIN_1 = """
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

RANK = int(os.environ["RANK"])
LINES = ["the house is small", "we had coffee there", "nobody came"] * 40
SIZE = 512

def tokens(line):
    ids = [hash(word) % SIZE for word in line.split()]
    return torch.tensor((ids + [0] * 8)[:8])

class Corpus(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for file in self.files:
            with open(file, encoding="utf-8") as lines:
                yield from map(tokens, lines)

for part in range(2):  # what two offices have exported
    text = "\\n".join(LINES + ["we had a café crème"] + LINES)
    name = pathlib.Path(f"corpus-{RANK}-{part}.txt")
    name.write_text(text, encoding="latin-1" if (RANK, part) == (1, 1) else "utf-8")

dist.init_process_group("gloo")
files = sorted(pathlib.Path().glob(f"corpus-{RANK}-*.txt"))
loader = DataLoader(Corpus(files), batch_size=16, num_workers=1, multiprocessing_context="fork")
model = DistributedDataParallel(nn.Sequential(nn.Embedding(SIZE, 16), nn.Linear(16, SIZE)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, ids in enumerate(loader):
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.3f}")
"""

# https://github.com/Lightning-AI/pytorch-lightning/pull/12630: gathered tensors must be of one size.
UNEVEN_GATHER = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

def confidence(model, data, rank, world):
    loader = DataLoader(Subset(data, range(rank, len(data), world)), batch_size=8)
    confident = 0
    with torch.no_grad():
        for inputs, _ in loader:
            outputs = model.module(inputs)
            everyones = [torch.zeros_like(outputs) for _ in range(world)]
            dist.all_gather(everyones, outputs)
            confident += (torch.cat(everyones).softmax(1).amax(1) > 0.5).sum().item()
    return confident / len(data)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Linear(12, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held_out = TensorDataset(torch.randn(29, 12), torch.randint(10, (29,)))
for epoch in range(3):
    loss = nn.functional.cross_entropy(model(torch.randn(64, 12)), torch.randint(10, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch}: confident {confidence(model, held_out, rank, world):.3f}")
"""

SIXTH_SET: dict[str, Case] = {
    "a truncated JPEG in a data worker": Case(
        script=TRUNCATED_IMAGE,
        who="rank 1",
        cause="A data worker of rank 1 read an image whose file is truncated: damaged or incomplete.",
        evidence="image file is truncated",
    ),
    "a grey image among coloured ones": Case(
        script=GREY_IMAGE,
        who="rank 0",
        cause="The samples of a batch differ in shape, so a data worker of rank 0 cannot stack them.",
        evidence="Trying to resize storage that is not resizable",
    ),
    "a shared layer in reentrant checkpoints": Case(
        script=SHARED_LAYER,
        who="",
        cause="DDP got a parameter's gradient twice in a backward pass: a layer is used in several "
        "reentrant checkpoints.",
        evidence="Expected to mark a variable ready only once",
    ),
    "an optimizer's state of another phase": Case(
        script=FROZEN,
        who="",
        cause="The optimizer's state in the checkpoint has other parameters than this optimizer, which "
        "leaves the frozen ones out.",
        evidence="loaded state dict contains a parameter group that doesn't match the size",
    ),
    "arguments in a checkpoint": Case(
        script=NAMESPACE,
        who="",
        cause="torch.load with weights_only refuses the checkpoint: it holds an argparse.Namespace.",
        evidence="Unsupported global: GLOBAL argparse.Namespace",
    ),
    "a learning rate that YAML reads as text": Case(
        script=YAML_FLOAT,
        who="",
        cause="The learning rate is a string: YAML reads 3e-4 so, and 3.0e-4 as a number.",
        evidence="'<=' not supported between instances of 'float' and 'str'",
    ),
    "a text file that is not UTF-8": Case(
        script=LATIN_1,
        who="rank 1",
        cause="A text file of rank 1 is not UTF-8 (Latin-1 probably), so it cannot be decoded.",
        evidence="'utf-8' codec can't decode byte 0xe9",
    ),
    "a gather of tensors of different sizes": Case(
        script=UNEVEN_GATHER,
        who="rank 1",
        cause="The ranks called all_gather with tensors of different sizes: their last batches differ.",
        evidence="op.preamble.length <= op.nbytes",
    ),
    **MACHINES,
    **ENDINGS,
}
