"""Code that reads untrusted bytes, with first inputs; it may raise Fault(64) or Fault(65).

TARGETS["job file"].run(b"name: a", folder)
"""

import atexit
import gzip
import hashlib
import io
import json
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image

from k8s import launchers
from k8s.cli.migrate import print_migrated
from k8s.cli.tables import progress_text
from k8s.cluster.observe.job_progress import newest_events
from k8s.jobfile import load
from k8s.jobfile.validate import validate
from k8s.plan import matrix
from k8s.render.manifests import render
from tests.checkpoint.small import save
from tests.conftest import ROOT
from tests.fuzz.verbs import KUBECONFIGS, answers, read_answer, read_kubeconfig
from trainer.checkpoint.find import complete
from trainer.checkpoint.manifest import MANIFEST_FILE
from trainer.config.environment import from_environment
from trainer.config.printable import printable
from trainer.distributed.unpickling import Restricted
from trainer.engine.initial import initialise
from trainer.launcher.program import code_archive
from trainer.rendezvous.messages import FROM_NODE, FROM_SERVER, decode, encode
from trainer.tasks.imagefolder import Folder
from trainer.tasks.parts import cifar_files
from trainer.tasks.parts.mnist import MnistTask
from trainer.tasks.parts.token_files import open_files

Run = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Target:
    """`seeds` returns the inputs that are mutated; `run` reads one, and may use an empty folder."""

    seeds: Callable[[], Sequence[bytes]]
    run: Run


def _job_file(data: bytes, folder: Path) -> None:
    file = folder / "job.yaml"
    file.write_bytes(data)
    first, *_ = matrix.cells(load.read([str(file)]))
    spec = validate(first.job.values)
    render(spec, launchers.find(spec.launcher))


def _migrate(data: bytes, folder: Path) -> None:
    file = folder / "job.yaml"
    file.write_bytes(data)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        print_migrated(file)


def _cifar(data: bytes, folder: Path) -> None:
    (folder / "batch").write_bytes(data)
    cifar_files.read(folder / "batch")


def _idx(data: bytes, folder: Path, *, end: str = "") -> None:
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name in ("images-idx3", "labels-idx1"):
        (raw / f"train-{name}-ubyte{end}").write_bytes(data)
    settings = from_environment({"TRAINER_TASK": "mnist", "TRAINER_DATA": str(folder)})
    MnistTask(settings, name="MNIST", mean=0.1, std=0.3).data(train=True)


def _image(data: bytes, folder: Path) -> None:
    (folder / "cat").mkdir(exist_ok=True)
    (folder / "cat/1.jpg").write_bytes(data)
    try:
        Folder(folder, ["cat"], 8)[0]
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001, S110  # the loader counts it as an unreadable sample
        pass


def _token_files(data: bytes, folder: Path) -> None:
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(bytes(200))
    (folder / "meta.json").write_bytes(data)
    open_files(folder, 8).train.batch(torch.tensor([0]))


def _manifest(data: bytes, folder: Path) -> None:
    where = shutil.copytree(_checkpoint(), folder / "step-00000003", dirs_exist_ok=True)
    (where / MANIFEST_FILE).write_bytes(data)
    complete(str(where))


def _weights(data: bytes, folder: Path, *, name: str) -> None:
    (folder / name).write_bytes(data)
    settings = from_environment({"TRAINER_INIT": str(folder / name)})
    initialise(torch.nn.Linear(3, 2), settings, is_main=False)


def _messages(data: bytes, _: Path) -> None:
    for line in data.split(b"\n"):
        for schema in (FROM_NODE, FROM_SERVER):
            decode(line, schema)


def _pickle(data: bytes, _: Path) -> None:
    # All errors of torch become one fault of the checkpoint, also a lack of memory, because a few bytes
    # can ask for any amount. If a BYTEARRAY8 gets no memory, CPython 3.11 prints a SystemError of
    # "exported buffers": it reads a count that it has not set. The object is empty: this does no harm.
    with suppress(Exception):
        Restricted(io.BytesIO(data)).load()


def _archive(data: bytes, folder: Path) -> None:
    file = folder / "code.tar.gz"
    file.write_bytes(data)
    hashed = hashlib.sha256(data).hexdigest()
    names = {"MUSTER_CODE": str(file), "MUSTER_CODE_SHA256": hashed}
    code_archive.unpack(names | {"MUSTER_CODE_FOLDER": str(folder / "code")})


def _logs(data: bytes, _: Path) -> None:
    lines = data.decode(errors="replace").split("\n")
    found = newest_events(lines)
    if found.progress:
        progress_text(found.progress)
    printable(" ".join(lines))


def _environment(data: bytes, _: Path) -> None:
    pairs = (line.partition("=") for line in data.decode(errors="replace").split("\n"))
    from_environment({f"TRAINER_{name}": value for name, _, value in pairs})


def _files(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(ROOT.glob(pattern))]


def _arrays() -> list[bytes]:
    rows = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    return [
        pickle.dumps({b"data": rows, b"labels": [1, 2], b"batch_label": b"x"}, protocol=number)
        for number in (2, 3, 4)
    ]


def _images() -> list[bytes]:
    found = []
    for kind in ("JPEG", "PNG", "GIF", "WEBP"):
        file = io.BytesIO()
        Image.new("RGB", (12, 9), "teal").save(file, kind)
        found.append(file.getvalue())
    return found


def _manifests() -> list[bytes]:
    found = []
    for name in launchers.known():
        spec = validate(load.read([str(ROOT / "k8s/jobs/02-digits-ddp.yaml")]).values)
        with suppress(Exception):
            found.append(render(spec, launchers.find(name)).text.encode())
    return found


IDX = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(1568)


@cache
def _checkpoint() -> Path:
    """Save a checkpoint once, before a fork: autograd cannot train in a fork of a process that did."""
    folder = Path(tempfile.mkdtemp(prefix="muster-fuzz-"))
    atexit.register(shutil.rmtree, folder)
    save(folder, 3)
    return folder / "step-00000003"


def _state_dicts() -> list[bytes]:
    file = io.BytesIO()
    torch.save(torch.nn.Linear(3, 2).state_dict(), file)
    return [file.getvalue()]


def _archives() -> list[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in ("train.py", "a/b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    return [file.getvalue(), gzip.compress(bytes(1024))]


LOGGED = [
    {"event": "step", "step": 3, "steps": 9, "loss": 0.5, "samples_per_s": 7.0, "samples": 96},
    {"event": "usage", "ranks": [{"rank": 0, "cpu": 0.5, "memory": 1, "memory_of": 2}]},
]


TARGETS = {
    "job file": Target(lambda: _files("k8s/jobs/*.yaml"), _job_file),
    "migrate": Target(_manifests, _migrate),
    "cifar": Target(_arrays, _cifar),
    "idx": Target(lambda: [IDX], _idx),
    "idx.gz": Target(lambda: [gzip.compress(IDX)], partial(_idx, end=".gz")),
    "image": Target(_images, _image),
    "tokens": Target(lambda: [b'{"dtype": "uint8", "vocabulary": 256}'], _token_files),
    "manifest": Target(lambda: [(_checkpoint() / MANIFEST_FILE).read_bytes()], _manifest),
    "safetensors": Target(
        lambda: [safetensors.torch.save(torch.nn.Linear(3, 2).state_dict())],
        partial(_weights, name="a.safetensors"),
    ),
    "state dict": Target(_state_dicts, partial(_weights, name="a.pt")),
    "membership": Target(
        lambda: [
            encode("join", number=1, ranks=8, nonce="0" * 32, proof="0" * 64),
            encode("start", round=1, node=1, nodes=2, first_rank=8, world_size=16, port=29500),
        ],
        _messages,
    ),
    "pickle": Target(
        lambda: [pickle.dumps((OSError(28, "full"), torch.Size([1]), torch.float32, {"a": [1]}))],
        _pickle,
    ),
    "archive": Target(_archives, _archive),
    "logs": Target(lambda: [json.dumps(one).encode() + b"\n[rank 1] x" for one in LOGGED], _logs),
    "kubeconfig": Target(lambda: KUBECONFIGS, read_kubeconfig),
    "api answers": Target(answers, read_answer),
    "environment": Target(
        lambda: [b"MODE=ddp\nMESH=dp_replicate=2\nLR=0.1\nTASK=digits\nEPOCHS=3\nMICRO_BATCH=4"],
        _environment,
    ),
}
