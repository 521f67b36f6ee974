"""Measure one GPU: `make bench-gpu`; with all tests of tests/gpu: `make gpu-check`.

    python -m tests.bench.gpu "resnet50 bf16" --rounds 9
    python -m tests.bench.gpu --check          # one file to send in, with the tests' output

Each row compares muster with a careful loop of plain PyTorch: same settings, in turn, by wall time.
`--small` tries the rows with small models, also without a GPU.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests.bench.__main__ import where
from tests.bench.measure import (
    SCRIPTS,
    Contender,
    end_contenders_on_sigterm,
    in_turn,
    ratio,
    typical,
)
from tests.bench.peers import gpu_task
from tests.conftest import ROOT
from trainer.config.settings import Settings
from trainer.models import flops
from trainer.watch.throughput import peak_of


@dataclass(frozen=True)
class Row:
    """A net, its batch and its settings; `units`: what is counted, `each`: how many a sample has."""

    net: str
    batch: int
    settings: Mapping[str, str] = field(default_factory=dict)
    units: str = "images"
    each: int = 1


_SGD, _FUSED = {"optimizer": "sgd"}, {"optimizer": "adamw-fused", "precision": "bf16"}
_LAST = {**_SGD, "precision": "bf16", "channels_last": "true"}


def _text(**settings: str) -> Row:
    return Row("Text", 16, settings, "tokens", 1024)


ROWS = {
    "resnet50 fp32": Row("Pictures", 128, _SGD),
    "resnet50 tf32": Row("Pictures", 128, {**_SGD, "precision": "tf32"}),
    "resnet50 bf16": Row("Pictures", 128, {**_SGD, "precision": "bf16"}),
    "resnet50 bf16, channels last": Row("Pictures", 128, _LAST),
    "resnet50 bf16, channels last, compiled": Row("Pictures", 128, {**_LAST, "compile": "true"}),
    "resnet50 bf16, channels last, whole step compiled": Row(
        "Pictures", 128, {**_LAST, "compile": "step"}
    ),
    "gpt124m fp32": _text(optimizer="adamw"),
    "gpt124m bf16": _text(optimizer="adamw", precision="bf16"),
    "gpt124m bf16, fused": _text(**_FUSED),
    "gpt124m bf16, fused, compiled": _text(**_FUSED, compile="true"),
    "gpt124m bf16, whole step compiled": _text(optimizer="adamw", precision="bf16", compile="step"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50, help="of a turn, a multiple of 10")
    parser.add_argument("--check", action="store_true", help="run tests/gpu too")
    parser.add_argument("--small", action="store_true", help="small models; a GPU is not needed")
    parser.add_argument("-o", "--folder", type=Path, default=ROOT / "build" / "bench")
    args = parser.parse_args(arguments)
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {'; '.join(ROWS)}")
    if not torch.cuda.is_available() and not args.small:
        parser.error("torch finds no GPU here; --small tries the rows without one")
    date = datetime.now(UTC)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    result: dict[str, Any] = {"date": date.isoformat(timespec="seconds"), **where()}
    result |= {"gpu": device, "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    result["small"] = args.small
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.check:
        result["tests"] = _tests()
    print(f"{result['date']}, {device}, torch {result['versions']['torch']}\n")
    print("| row | muster, a second | share of the peak | plain PyTorch | time by its (spread) |")
    print("| --- | --- | --- | --- | --- |")
    path = args.folder / f"gpu-{date:%Y%m%dT%H%M%S}.json"
    result["rows"] = {}
    for name in args.rows or ROWS:
        try:
            found = measured(ROWS[name], small=args.small, rounds=args.rounds, steps=args.steps)
        except RuntimeError as error:  # the other rows are still useful
            found = {"error": str(error)}
        result["rows"][name] = found
        print(_line(name, found), flush=True)
        path.write_text(json.dumps(result, indent=1), encoding="utf-8")  # the run may be cut off
    print(f"\n{path}")
    failed = any("error" in one for one in result["rows"].values())
    return int(failed or result.get("tests", {}).get("exit", 0) != 0)


def measured(row: Row, *, small: bool, rounds: int, steps: int) -> dict[str, Any]:
    steps = 10 if small else steps
    batch, each = (4, 128 if row.net == "Text" else 1) if small else (row.batch, row.each)
    times = in_turn(_contenders(row, batch=batch, steps=steps, small=small), rounds=rounds)
    wall, spread = ratio(*([one.wall for one in times[who]] for who in ("muster", "plain")))
    items = {who: steps * batch * each / typical(took).wall for who, took in times.items()}
    found: dict[str, Any] = {"units": row.units, **items, "wall": wall, "wall_spread": spread}
    found["peak_share"] = None
    if not small:
        precision = row.settings.get("precision", "fp32")
        found["flops_per_s"] = items["muster"] / each * operations(row, precision)
        if peak := peak_of(torch.cuda.get_device_name(), precision, 1):
            found["peak_share"] = found["flops_per_s"] / peak
    return found | {"times": {who: [asdict(one) for one in took] for who, took in times.items()}}


def _contenders(row: Row, *, batch: int, steps: int, small: bool) -> dict[str, Contender]:
    env = {"BENCH_STEPS": str(steps)} | ({"BENCH_SMALL": "1"} if small else {})
    fixed = {
        "task": f"tests.bench.peers.gpu_task:{row.net}",
        "global_batch": str(batch),
        "log_steps": "10",
        "precision": "fp32",
        "steps": str(10**7),
        "epochs": str(10**7),
        "checkpoint_steps": "0",
        "eval_steps": "0",
        "out": "run",
    }
    ours = {
        f"TRAINER_{name.upper()}": value for name, value in (fixed | dict(row.settings)).items()
    }
    theirs = {"BENCH_NET": row.net, "BENCH_BATCH": str(batch), "BENCH_PRECISION": "fp32"}
    theirs |= {f"BENCH_{name.upper()}": value for name, value in row.settings.items()}
    plain = Contender((str(SCRIPTS / "gpu.py"),), theirs | env)
    return {"muster": Contender(("-m", "trainer"), ours | env), "plain": plain}


def operations(row: Row, precision: str) -> float:
    """Return the floating-point operations of a sample, forward and backward."""
    task = getattr(gpu_task, row.net)(Settings())
    shape = (1, 3, 224, 224) if row.net == "Pictures" else (1, row.each)
    kind = torch.float32 if row.net == "Pictures" else torch.int64
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with torch.device("meta"):
        return flops.count(task.model(), torch.empty(shape, dtype=kind), dtype=dtype, limit=60)


def _line(name: str, found: Mapping[str, Any]) -> str:
    if "error" in found:
        return f"| {name} | failed: {found['error'].strip().splitlines()[-1]} | | | |"
    share = f"{found['peak_share']:.0%}" if found["peak_share"] else ""
    return (
        f"| {name} | {found['muster']:,.0f} {found['units']} | {share} | {found['plain']:,.0f} | "
        f"{found['wall']:.2f} ({found['wall_spread']:.0%}) |"
    )


def _tests() -> dict[str, Any]:
    """Run tests/gpu; return pytest's exit code and the end of its output, with all failures."""
    command = (sys.executable, "-m", "pytest", "-q", "-rfEs", "-m", "gpu", "-n", "4", "tests/gpu")
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(ended.stdout[-2000:])
    return {"exit": ended.returncode, "output": ended.stdout[-50_000:]}


if __name__ == "__main__":
    end_contenders_on_sigterm()
    sys.exit(main())
