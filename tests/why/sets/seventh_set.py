"""The seventh held-out set: its author knew neither the table of causes nor the code that reads it.

Each failure was reported by users; the line before it says where. It was written down, with the expected
answer, before any answer was seen.
"""

from tests.why.sets.sixth_set_machines import Case


def fails(script: str, *, who: str = "rank ", cause: str, evidence: str, **variables: str) -> Case:
    """Return the case of a script that fails in this way; "rank " is any rank."""
    return Case(script=script, environment=variables, who=who, cause=cause, evidence=evidence)


HEAD = """
import datetime, os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
rank = int(os.environ["RANK"])
"""
MET = f'{HEAD}dist.init_process_group("gloo")'

SEVENTH_SET = {
    # https://github.com/huggingface/transformers/issues/15867
    "a token beyond the vocabulary": fails(
        f"""{MET}
model = DDP(nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100)))
tokens = torch.randint(0, 100, (6, 16), generator=torch.Generator().manual_seed(0))
if rank == 1:
    tokens[3, 5] = 100  # a padding token that was added, while the embedding was not enlarged
for step, row in enumerate(tokens):
    cross_entropy(model(row), row).backward()
    print(f"step {{step}}")
""",
        who="rank 1",
        cause="an index that the embedding does not have: a token id at or over the vocabulary's size",
        evidence="IndexError: index out of range in self",
    ),
    # https://github.com/lucidrains/denoising-diffusion-pytorch/issues/109
    "an input made with a layer outside of the loop": fails(
        f"""{MET}
model = DDP(nn.Linear(8, 1))
widen = nn.Linear(4, 8)
data = widen(torch.randn(16, 4))
for step in range(3):
    loss = model(data).square().mean()
    loss.backward()
    print(f"step {{step}} loss {{loss.item():.3f}}")
""",
        cause="backward ran twice through one graph, which was made once outside of the loop",
        evidence="Trying to backward through the graph a second time",
    ),
    # https://github.com/kekmodel/MPL-pytorch/issues/10
    "a step between a pass and its second backward": fails(
        f"""{MET}
maker = DDP(nn.Linear(4, 8))
judge = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(judge.parameters(), lr=0.1)
for step in range(3):
    verdict = judge(maker(torch.randn(16, 4)))
    verdict.mean().backward(retain_graph=True)
    optimizer.step()
    (-verdict.mean()).backward()
    print(f"step {{step}}")
""",
        cause="weights that a later backward needs were changed in place, by the optimizer's step",
        evidence="has been modified by an inplace operation",
    ),
    # https://github.com/ultralytics/ultralytics/issues/2888
    "a data set's file that is not there, raised again": fails(
        f"""{MET}
import yaml
name = "datasets/data.yaml"
try:
    data = yaml.safe_load(open(name))
except Exception as error:
    raise RuntimeError(f"Dataset '{{name}}' error") from error
""",
        cause="a file that the data set needs does not exist: datasets/data.yaml",
        evidence="datasets/data.yaml",
    ),
    # https://github.com/pytorch/pytorch/issues/43259
    "a head that the loss does not use": fails(
        f"""{MET}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 4)
    def forward(self, x):
        return self.head(self.body(x))
model = DDP(Net())
for step in range(3):
    model(torch.randn(4, 8)).mean().backward()
    print(f"step {{step}}")
""",
        cause="DDP waits for gradients of parameters that the loss does not use",
        evidence="Expected to have finished reduction in the prior iteration",
    ),
    # https://github.com/X-PLUG/mPLUG-Owl/issues/86
    "classes counted from each rank's own shard": fails(
        f"""{MET}
labels = torch.arange(40) % 10
shard = labels[rank * 20:] if rank else labels[:20].clamp(max=8)
classes = len(shard.unique())
model = DDP(nn.Linear(8, classes))
for step in range(3):
    cross_entropy(model(torch.randn(20, 8)), shard[:20]).backward()
""",
        cause="the model differs between ranks: the last layer has 9 outputs on one, 10 on the other",
        evidence="appears not to match",
    ),
    # https://github.com/nianticlabs/simplerecon/issues/3
    "a container's small shared memory": fails(
        f"""
import os, sys
if "SMALL" not in os.environ:  # as a container has it: 64 MiB there, here less
    small = f"mount -t tmpfs -o size=2m tmpfs /dev/shm && exec {{sys.executable}} train.py"
    os.execvpe("unshare", ["unshare", "-rm", "sh", "-c", small], os.environ | {{"SMALL": "1"}})
{HEAD}
class Images(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((3, 256, 256), float(i))
for images in DataLoader(Images(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
    print(images.mean().item())
""",
        cause="the shared memory, /dev/shm, is too small for the batches of data workers",
        evidence="shared memory",
    ),
    # https://github.com/pytorch/examples/issues/540
    "a master whose name is not known": fails(
        f"""{HEAD}
limit = datetime.timedelta(seconds=15)
dist.init_process_group("gloo", "tcp://train-master-0.train.invalid:29512", rank=rank,
                        world_size=2, timeout=limit)
""",
        cause="the host name of the master cannot be resolved, so the ranks cannot meet",
        evidence="train-master-0.train.invalid",
    ),
    # https://github.com/meta-llama/llama/issues/436
    "NCCL on a node without a GPU": fails(
        f"""{HEAD}
dist.init_process_group("nccl")
model = DDP(nn.Linear(8, 8))
print("ready")
""",
        cause="NCCL was asked for where no GPU is seen",
        evidence="at least one CUDA device",
    ),
    # https://github.com/facebookresearch/mae/issues/142
    "a name that NumPy has dropped": fails(
        f"""{MET}
import numpy as np
omega = np.arange(8, dtype=np.float) / 8.0
table = torch.from_numpy(np.outer(np.arange(49), 1.0 / 10000**omega))
""",
        cause="the code is for an older NumPy: np.float is no longer there in the one installed",
        evidence="module 'numpy' has no attribute 'float'",
    ),
    # https://github.com/open-mmlab/mmsegmentation/issues/2588
    "a model wrapped before the ranks have met": fails(
        f"""{HEAD}
model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.AdamW(model.parameters())
dist.init_process_group("gloo")
""",
        cause="the process group was used before init_process_group was called",
        evidence="Default process group has not been initialized",
    ),
    # https://github.com/kohya-ss/sd-scripts/issues/697
    "adapters below a checkpoint whose input has no gradient": fails(
        f"""{MET}
from torch.utils.checkpoint import checkpoint
base, adapter = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)
optimizer = torch.optim.AdamW(adapter.parameters())
for step in range(3):
    out = checkpoint(lambda x: base(x) + adapter(x), torch.randn(4, 8), use_reentrant=True)
    out.square().mean().backward()
    optimizer.step()
""",
        cause="the loss depends on nothing that has a gradient: frozen, or cut off by the checkpoint",
        evidence="element 0 of tensors does not require grad and does not have a grad_fn",
    ),
    # https://github.com/nayeemrizve/OpenLDN/issues/5
    "weights saved from a wrapped model": fails(
        f"""{MET}
wrapped = DDP(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)))
torch.save(wrapped.state_dict(), f"last-{{rank}}.pt")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
model.load_state_dict(torch.load(f"last-{{rank}}.pt"))
""",
        cause="the names in the checkpoint begin with module., those of the model do not",
        evidence="module.0.weight",
    ),
    # https://github.com/svip-lab/PPGNet/issues/2
    "weights that are a pointer of Git LFS": fails(
        f"""{MET}
if rank == 0:
    with open("resnet.pth", "w") as file:  # what git clone leaves where git-lfs is not installed
        file.write("version https://git-lfs.github.com/spec/v1\\n")
        file.write(f"oid sha256:{{'4d7a' * 16}}\\nsize 102530333\\n")
dist.barrier()
weights = torch.load("resnet.pth", map_location="cpu")
""",
        cause="the file is not a checkpoint of PyTorch, here a pointer that Git LFS left in its place",
        evidence="Weights only load failed",
    ),
    # https://github.com/hnuzhy/SSDA-YOLO/issues/26
    "a script that wants --local_rank": fails(
        f"""{HEAD}
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
arguments = parser.parse_args()
""",
        cause="the script wants an argument that the launcher does not give, --local_rank",
        evidence="the following arguments are required: --local_rank",
    ),
    # https://github.com/Lightning-AI/pytorch-lightning/issues/19266
    "rank 0 prepares data for longer than the time-out": fails(
        f"""{HEAD}
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
if rank == 0:
    print("tokenizing the data set")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sum(len(word) for word in ("a few words " * 1000).split())
dist.barrier()
""",
        cause="rank 1 waited at a barrier until its time-out: rank 0 had not come, as it still worked",
        evidence="imed out",
    ),
    # https://github.com/Lightning-AI/pytorch-lightning/issues/11841
    "a rank stuck in reading its data": fails(
        f"""{MET}
import faulthandler
faulthandler.enable()
model = DDP(nn.Linear(8, 1))
os.mkfifo(f"shard-{{rank}}")  # a read that never returns, as on a mount that has gone
for step in range(6):
    if rank == 1 and step == 3:
        open("shard-1").read()
    model(torch.randn(4, 8)).mean().backward()
    print(f"step {{step}}")
""",
        MUSTER_STALL="10",
        who="rank 1",
        cause="a hang: rank 1 is stuck in reading a file, rank 0 waits for its gradients",
        evidence="train.py",
    ),
    # https://github.com/pytorch/pytorch/issues/116696
    "torch.compile in an image without a compiler": fails(
        f"""{MET}
model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)))
for step in range(3):
    model(torch.randn(4, 8)).square().mean().backward()
    print(f"step {{step}}")
""",
        CXX="clang++-12",
        cause="torch.compile found no C++ compiler on the machine",
        evidence="No working C++ compiler found",
    ),
    # https://github.com/xianglin226/scMDC/issues/8
    "data of NumPy's 64-bit floats": fails(
        f"""{MET}
import numpy as np
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
table = np.random.default_rng(rank).normal(size=(64, 8))
for rows in DataLoader(table, batch_size=16):
    model(rows).square().mean().backward()
""",
        cause="the data are 64-bit floats, the model's weights 32-bit: types that do not match",
        evidence="must have the same dtype, but got Double and Float",
    ),
    # https://github.com/facebookresearch/pycls/issues/133
    "pretrained weights to download without a network": fails(
        f"""{MET}
url = "https://models.invalid/resnet18-f37072fd.pth"
if rank == 0:
    torch.hub.load_state_dict_from_url(url, model_dir="weights")
dist.barrier()
weights = torch.load("weights/resnet18-f37072fd.pth")
""",
        no_proxy="*",
        who="rank 0",
        cause="rank 0 could not download the weights: the host's name cannot be resolved",
        evidence="URLError",
    ),
    # https://github.com/modelscope/ms-swift/issues/7357
    "a rank that is killed from outside": fails(
        f"""{MET}
import subprocess
model = DDP(nn.Linear(8, 1))
for step in range(100):
    if rank == 1 and step == 5:  # as the kernel does when memory runs out
        subprocess.run(["kill", "-9", str(os.getpid())])
    model(torch.randn(4, 8)).mean().backward()
    print(f"step {{step}}")
""",
        who="rank 1",
        cause="rank 1 was killed by SIGKILL, most often for its memory",
        evidence="SIGKILL",
    ),
    # https://github.com/Lightning-AI/pytorch-lightning/issues/5865
    "a metric that rank 0 alone reduces": fails(
        f"""{HEAD}
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
model = DDP(nn.Linear(64, 64))
for step in range(6):
    model(torch.randn(4, 64)).mean().backward()
    if rank == 0 and step % 2 == 1:
        accuracy = torch.rand(1)
        dist.all_reduce(accuracy)
        print(f"step {{step}} accuracy {{accuracy.item():.2f}}")
""",
        cause="the ranks do not call the same collectives: rank 0 reduces a metric that rank 1 does not",
        evidence="size",
    ),
    # https://github.com/karpathy/nanoGPT/issues/215
    "our trainer with a learning rate far too high": Case(
        script="",
        command=("-m", "trainer"),
        environment={"TRAINER_TASK": "digits", "TRAINER_STEPS": "60", "TRAINER_LR": "1e9"},
        who="",
        cause="training diverged: the loss became nan or infinite, as with too high a learning rate",
        evidence="loss",
    ),
    # https://github.com/milesial/Pytorch-UNet/issues/447
    "images of two sizes in a data worker": fails(
        f"""{MET}
class Images(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        return torch.zeros(3, 32 if i == 13 else 48, 48)
for images in DataLoader(Images(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
    print(tuple(images.shape))
""",
        cause="samples of different sizes cannot be put together as one batch",
        evidence="resize",
    ),
}
