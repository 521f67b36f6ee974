"""Rows of whole commands: `python render.py`, `python -m trainer.export`, `python -m k8s status`."""

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.bench.cluster import NAME, cluster
from tests.bench.measure import Contender, Times, each_in_turn, to_end
from tests.conftest import ROOT

TORCHX = ROOT / "build" / "torchx" / "bin"


def render(rounds: int) -> Times:
    """Two nodes with eight ranks, rendered by muster and by TorchX's dry run."""
    sizes = ("nodes=2", "procsPerNode=8", "trainer.globalBatch=64")
    sets = [part for one in sizes for part in ("--set", one)]
    job = str(ROOT / "k8s" / "jobs" / "02-digits-ddp.yaml")
    contenders = {"muster": Contender((str(ROOT / "render.py"), job, *sets))}
    if TORCHX.exists():
        options = ("run", "--dryrun", "--workspace=", "-s", "kubernetes", "-cfg", "queue=q")
        what = ("dist.ddp", "-j", "2x8", "--image", "a:1", "--script", "render.py")
        theirs = Contender((str(TORCHX / "torchx"), *options, *what), python=TORCHX / "python")
        contenders["TorchX"] = theirs
    return _each(contenders, rounds=rounds)


def export(rounds: int) -> Times:
    """The same weights, from a checkpoint and from a file of torch.save."""
    with tempfile.TemporaryDirectory() as folder:
        task = {"TRAINER_TASK": "tests.bench.peers.muster_task:Large", "TRAINER_STEPS": "1"}
        to_end(Contender(("-m", "trainer"), {**task, "TRAINER_OUT": folder}))
        (checkpoint,) = Path(folder, "checkpoints").glob("step-*")
        ours = Contender(("-m", "trainer.export", str(checkpoint), "-o", f"{folder}/ours"))
        to_end(ours)
        imports = "import torch; from safetensors.torch import load_file, save_file"
        weights, out = f"{folder}/weights.pt", f"{folder}/theirs"
        save = f"{imports}; torch.save(load_file({ours.arguments[-1]!r}), {weights!r})"
        to_end(Contender(("-c", save)))
        load = f"torch.load({weights!r}, weights_only=True)"
        theirs = Contender(("-c", f"{imports}; save_file({load}, {out!r})"))
        return _each({"muster": ours, "torch.load": theirs}, rounds=rounds)


def status(rounds: int) -> Times:
    """A job of 1,000 pods on the tests' stand-in for an API server; kubectl lists pods and jobs."""
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), pods=1000) as config:
        env = {"KUBECONFIG": str(config), "HOME": folder}  # for kubectl's cache of discovery
        contenders = {"muster": Contender(("-m", "k8s", "status", NAME), env)}
        if kubectl := shutil.which("kubectl"):
            listing = ("get", "pods,jobs", "-o", "wide")
            contenders["kubectl"] = Contender(listing, env, python=Path(kubectl))
        return _each(contenders, rounds=rounds)


def _each(contenders: Mapping[str, Contender], *, rounds: int) -> Times:
    ends = {name: partial(to_end, one) for name, one in contenders.items()}
    return each_in_turn(ends, rounds=rounds)
