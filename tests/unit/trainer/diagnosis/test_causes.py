"""The table of causes knows the errors that libraries really raise: each test causes the error."""

import contextlib
import copy
import gzip
import http.server
import importlib
import json
import os
import pickle
import re
import socket
import sqlite3
import struct
import tarfile
import threading
import tomllib
import traceback
import urllib.request
import zipfile
from collections.abc import Callable
from ctypes import CDLL
from pathlib import Path

import numpy as np
import pytest
import requests
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from pydantic import BaseModel
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate, random_split
from torchvision.datasets import MNIST, ImageFolder

from trainer.diagnosis.causes import find
from trainer.diagnosis.errors import errors

X, NET = torch.ones(4, 8), nn.Linear(8, 3)


def twice() -> None:
    loss = NET(X).sum() ** 2
    loss.backward()
    loss.backward()


def in_place() -> None:
    hidden = torch.sigmoid(NET(X))
    hidden += 1
    hidden.sum().backward()


def circular(folder: Path) -> None:
    package = folder / "circular"
    package.mkdir()
    (package / "model.py").write_text("import circular.data\nWIDTH = 8\n")
    (package / "data.py").write_text("import circular.model\nSIZE = circular.model.WIDTH\n")
    importlib.import_module("circular.model")


def locked(folder: Path) -> None:
    file = folder / "trials.db"
    with (
        contextlib.closing(sqlite3.connect(file)) as one,
        contextlib.closing(sqlite3.connect(file, timeout=0)) as other,
    ):
        for connection in (one, other):
            connection.execute("begin exclusive")


def refused(_: Path) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/weights.pt")


def spawned() -> None:
    how = {"num_workers": 1, "multiprocessing_context": "spawn"}
    next(iter(DataLoader([1, 2], collate_fn=lambda one: one, **how)))  # type: ignore[arg-type]


def alone(code: Callable[[], object]) -> None:
    """Run code as the only rank of a process group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        code()
    finally:
        dist.destroy_process_group()


def frozen() -> None:
    net = nn.Linear(2, 2).requires_grad_(False)
    DistributedDataParallel(net)


def sharded() -> object:
    return distribute_tensor(X, init_device_mesh("cpu", (1,)), [Replicate()]) + X


def compiled() -> None:
    torch.compile(lambda x: x + len(str(torch._dynamo.graph_break())), fullgraph=True)(X)  # noqa: SLF001


def in_inference() -> None:
    with torch.inference_mode():
        seen = X * 2
    (NET.weight[:, :1] * seen[:3, :1]).sum().backward()


def killed_child() -> None:
    torch.multiprocessing.spawn(_exit_by, args=(9,))


def _exit_by(_: int, number: int) -> None:
    os.kill(os.getpid(), number)


class Settings(BaseModel):
    """Settings like those of a user's program."""

    depth: int


def raised(message: str) -> None:
    raise ValueError(message)


def exploded() -> torch.Tensor:
    net = torch.ones(2, requires_grad=True)
    net.grad = torch.full((2,), float("inf"))
    return net


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def two_groups() -> dict[str, object]:
    return torch.optim.SGD([{"params": [X]}, {"params": [X[0]]}]).state_dict()


def of_another_model() -> None:
    saved = torch.optim.SGD([X, X[0]]).state_dict()
    torch.optim.SGD([X]).load_state_dict(saved)


RAISED: list[tuple[str, Callable[[Path], object]]] = [
    ("shapes", lambda _: F.cross_entropy(NET(X), torch.zeros(3, dtype=torch.long))),
    ("shapes", lambda _: F.cross_entropy(NET(X), torch.full((4,), 3))),
    ("shapes", lambda _: F.binary_cross_entropy_with_logits(NET(X), torch.zeros(4))),
    ("shapes", lambda _: NET(X.double())),
    ("shapes", lambda _: NET(torch.ones(4, 9))),
    ("shapes", lambda _: nn.Conv2d(3, 1, 1)(torch.ones(1, 1, 8, 8))),
    ("shapes", lambda _: nn.Embedding(4, 2)(torch.tensor([4]))),
    ("shapes", lambda _: nn.Embedding(4, 2)(X)),
    ("shapes", lambda _: X.mean(dim=2)),
    ("shapes", lambda _: F.nll_loss(NET(X), torch.zeros(4, dtype=torch.int))),
    ("shapes", lambda _: X.view(3, -1)),
    ("shapes", lambda _: X + torch.ones(5, 8)),
    ("shapes", lambda _: torch.cat([X, torch.ones(4, 8, 1)])),
    ("shapes", lambda _: torch.tensor([[1, 2, 3], [1, 2]])),
    ("shapes", lambda _: default_collate([X, torch.ones(3)])),
    ("shapes", lambda _: default_collate([None, None])),
    ("shapes", lambda _: torch.arange(3).mean()),
    ("shapes", lambda _: torch.stack([X, torch.ones(3)])),
    ("shapes", lambda _: nn.BatchNorm1d(8).train()(X[:1])),
    ("shapes", lambda _: nn.LSTM(4, 2)(torch.ones(2, 3, 8))),
    ("shapes", lambda _: nn.LayerNorm(4)(X)),
    ("shapes", lambda _: nn.MultiheadAttention(8, 3)),
    ("shapes", lambda _: X.gather(1, torch.full((4, 1), 8))),
    ("shapes", lambda _: F.one_hot(torch.tensor([3]), 2)),
    ("shapes", lambda _: F.cross_entropy(NET(X), torch.rand(4))),
    ("shapes", lambda _: X.item()),
    ("shapes", lambda _: np.ones(3) + np.ones(4)),
    ("shapes", lambda _: np.array([[1, 2], [1]], dtype=float)),
    ("shapes", lambda _: nn.MaxPool2d(2)(torch.ones(1, 3, 1, 1))),
    ("shapes", lambda _: default_collate([[X, X], [X]])),
    ("shapes", lambda _: nn.Conv2d(3, 1, 1)(torch.ones(1, 3, 8, 8).double())),
    ("shapes", lambda _: nn.Conv2d(1, 1, 3)(torch.ones(1, 1, 2, 2))),
    ("shapes", lambda _: X.expand(2, 8)),
    ("shapes", lambda _: torch.ones(4, 8).t().view(-1)),
    ("shapes", lambda _: torch.arange(3).add_(0.5)),
    ("shapes", lambda _: torch.zeros(3)[torch.zeros(2)]),
    ("shapes", lambda _: torch.einsum("bi,ij->bj", X, X)),
    ("shapes", lambda _: X.split([3, 3])),
    ("shapes", lambda _: X.bmm(X)),
    ("shapes", lambda _: NET(np.ones((4, 8)))),
    ("shapes", lambda _: F.cross_entropy(NET(X), [1, 2, 0, 1])),  # type: ignore[arg-type]
    ("shapes", lambda _: F.mse_loss(X, torch.ones(3))),
    ("shapes", lambda _: F.binary_cross_entropy(X * 2, X)),
    ("shapes", lambda _: F.cross_entropy(NET(X), torch.zeros(4).long(), weight=torch.ones(2))),
    ("shapes", lambda _: bool(X > 0)),
    ("shapes", lambda _: torch.from_numpy(np.array([None]))),
    ("shapes", lambda _: np.zeros(12).reshape(5, -1)),
    ("shapes", lambda _: np.stack([np.zeros(2), np.zeros(3)])),
    ("shapes", lambda _: np.zeros((2, 3)) @ np.zeros(2)),
    ("shapes", lambda _: nn.Linear(2, 2, device="meta").to("cpu")),
    ("diverged", lambda _: torch.multinomial(X * float("nan"), 1)),
    ("diverged", lambda _: torch.distributions.Normal(X * float("nan"), 1)),
    ("diverged", lambda _: nn.utils.clip_grad_norm_([exploded()], 1, error_if_nonfinite=True)),
    ("diverged", lambda _: torch.linalg.svd(torch.full((2, 2), float("nan")))),
    ("autograd", lambda _: NET(X).backward()),
    ("autograd", lambda _: torch.autograd.grad(NET(X).sum(), [NET.weight, leaf()])),
    ("autograd", lambda _: torch.arange(3).requires_grad_()),
    ("autograd", lambda _: in_inference()),
    ("unused parameters", lambda _: alone(frozen)),
    ("process group", lambda _: dist.init_process_group("ncll")),
    ("process group", lambda _: alone(lambda: dist.new_group([0, 1]))),
    ("sharded model", lambda _: alone(sharded)),
    ("compile", lambda _: compiled()),
    ("shared tensors", lambda folder: save_file({"a": X, "b": X}, folder / "w")),
    ("shared tensors", lambda folder: save_file({"a": X.t()}, folder / "w")),
    ("checkpoint", lambda _: torch.optim.SGD([X]).load_state_dict(two_groups())),
    ("killed", lambda _: killed_child()),
    ("data", lambda folder: MNIST(str(folder))),
    ("data", lambda folder: ImageFolder(str(folder))),
    ("data", lambda _: random_split(TensorDataset(X), [1, 2])),
    ("content", lambda _: struct.unpack("d", b"123")),
    ("setting", lambda _: Settings(depth="ten")),
    ("download", lambda _: requests.get("http://127.0.0.1:9/weights.pt", timeout=2)),
    ("network interface", lambda _: socket.create_server(("203.0.113.7", 0))),
    ("file", lambda folder: (folder / "ECCV" / "preempted" / "Evicted").read_text()),
    ("autograd", lambda _: X.sum().backward()),
    ("autograd", lambda _: twice()),
    ("autograd", lambda _: in_place()),
    ("autograd", lambda _: NET.weight.mul_(2)),
    ("autograd", lambda _: NET(X).numpy()),
    ("autograd", lambda _: torch.optim.SGD([NET(X)])),
    ("autograd", lambda _: copy.deepcopy(NET(X))),
    ("process group", lambda _: dist.barrier()),
    ("process group", lambda _: dist.init_process_group("gloo", init_method="env://")),
    ("pickle", lambda _: pickle.dumps(lambda: 0)),
    ("pickle", lambda _: spawned()),
    ("same file", locked),
    ("same file", lambda folder: folder.mkdir()),
    ("content", lambda folder: zipfile.ZipFile(some(folder))),
    ("content", lambda folder: tarfile.TarFile(some(folder))),
    ("content", lambda folder: gzip.decompress(some(folder).read_bytes())),
    ("content", lambda _: gzip.decompress(gzip.compress(bytes(999))[:-20])),
    ("content", lambda folder: np.load(some(folder))),
    ("content", lambda _: json.loads("<html>")),
    ("checkpoint", lambda folder: torch.load(some(folder), weights_only=False)),
    ("checkpoint", lambda folder: torch.load(some(folder))),
    ("checkpoint", lambda folder: load_file(some(folder))),
    ("checkpoint", lambda _: nn.Linear(8, 4).load_state_dict(NET.state_dict())),
    ("checkpoint", lambda _: of_another_model()),
    ("data", lambda _: DataLoader(TensorDataset(X[:0]), shuffle=True)),
    ("bad samples", lambda folder: Image.open(some(folder))),
    ("content", lambda _: tomllib.loads("lr: 0.1")),
    ("content", lambda _: b"\xff\xfe1".decode()),
    ("credentials", refused),
    ("own module", circular),
    ("package", lambda _: CDLL("libno_such.so.12")),
    # Of a program's own: words that also stand in the table's texts.
    ("raised", lambda _: {"size": 1}["shape"]),
    ("raised", lambda _: int("one size")),
    ("raised", lambda _: re.match("expected type", None)),  # type: ignore[call-overload]
    ("raised", lambda _: raised("lr must be smaller than 1")),
    ("raised", lambda _: raised("batch must be divisible by workers")),
    ("raised", lambda _: raised("expected a scheduler of another type")),
    ("raised", lambda _: json.dumps(X)),
    ("raised", lambda _: X.backwards()),  # type: ignore[attr-defined]
    ("raised", lambda _: {"gpu": 1}["preemptible"]),
    ("raised", lambda _: raised("no improvement of the loss for 10 epochs")),
    ("raised", lambda _: raised("weights of the classes sum to 3")),
]


def some(folder: Path) -> Path:
    """Return a file that is a page of a server."""
    path = folder / "data"
    path.write_text("<html>404 Not Found</html>" * 100, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, marks=[pytest.mark.slow] if cause == "killed" else [], id=f"{n}-{cause}")
        for n, (cause, _) in enumerate(RAISED)
    ],
)
def test_what_a_library_raises_has_its_cause(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    cause, code = RAISED[number]
    with pytest.raises(Exception) as raised:  # noqa: PT011  # which one is in the table
        code(tmp_path)
    newest = errors("".join(traceback.format_exception(raised.value)).splitlines())[0][0]
    found = find(newest)
    assert found is not None, newest
    assert found.name == cause, newest
