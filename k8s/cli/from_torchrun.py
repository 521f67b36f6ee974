"""Make a job file from a torchrun command line.

render.py --from-torchrun -- torchrun --nnodes 2 --nproc-per-node 8 train.py --lr 1 > job.yaml
"""

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from k8s.base.errors import config_error
from k8s.cli.migrate import print_job_file
from k8s.launchers.torchrun import (
    SET_ELSEWHERE,
    local_rank_note,
    parse,
    run_of_torchrun,
    without_torchrun,
)

_LABEL = "--from-torchrun"
IMAGE = "docker.io/pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"


def print_from_torchrun(words: Sequence[str]) -> None:
    """Print the job file of a command line, and notes on stderr. Raises Fault(64)."""
    values, notes = convert(words)
    print_job_file(values, notes, head=f"From {shlex.join(words)}. To be checked:")


def convert(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a job file's values for a command line, and notes. Raises Fault(64)."""
    variables = []
    rest = list(words)
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables.append({"name": name, "value": value})
    its_own = without_torchrun(rest)
    if its_own is None:
        raise config_error(
            f"{_LABEL}: {shlex.join(rest[:3]) or 'nothing'!r} is not torchrun, which also starts "
            "scripts for accelerate or DeepSpeed; write the whole command line after --, e.g. "
            "-- torchrun --nproc-per-node 8 train.py"
        )
    asked = parse(its_own, label=_LABEL)
    notes = [
        f"image: {IMAGE.rpartition('/')[2]}, replace it with one that has the program's packages"
    ]
    notes += [
        f"--{option}: left out; the launcher sets it or does this in its own way"
        for option in SET_ELSEWHERE
        if getattr(asked, option.replace("-", "_")) is not None
    ]
    notes += local_rank_note(rest, asked)
    travels = _travels(asked, notes)
    values = {
        "name": job_name(PurePath(asked.program[0]).stem),
        "image": IMAGE,
        "nodes": _nodes("1" if asked.standalone else asked.nnodes),
        **_ranks(asked.nproc_per_node, notes),
        "run": run_of_torchrun(asked),
        "code": {"path": "."} if travels else None,
        "env": variables,
        "faults": {"restarts": "ranks", "maxRestarts": asked.max_restarts}
        if asked.max_restarts
        else None,
    }
    return {key: value for key, value in values.items() if value not in (None, [], {})}, notes


def _travels(asked: argparse.Namespace, notes: list[str]) -> bool:
    """Return whether the folder must travel with the job."""
    first = asked.program[0]
    path = PurePath(first)
    if asked.module or not (path.is_absolute() or ".." in path.parts):
        notes.append("code.path: the current folder; keep the job file in it")
        return True
    notes.append(f"{first}: not below the current folder, so it must be in the image")
    return False


def _nodes(text: str) -> int | dict[str, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None:
        raise config_error(f"{_LABEL}: --nnodes={text!r}: must be a number, or MIN:MAX")
    least, most = int(found[1]), int(found[2] or found[1])
    return least if least == most else {"min": least, "max": most}


def _ranks(text: str, notes: list[str]) -> dict[str, Any]:
    if text.isdecimal() and int(text):
        notes.append(f"resources.gpu: {text}, one for each rank; without GPUs set procsPerNode")
        return {"resources": {"gpu": int(text)}}
    if text not in ("gpu", "auto", "cpu", "xpu"):
        raise config_error(f"{_LABEL}: --nproc-per-node={text!r}: must be a number, at least 1")
    notes.append(
        f"--nproc-per-node={text}: set resources.gpu, from which the number of ranks follows"
    )
    return {}


def job_name(stem: str) -> str:
    """Return a job's name made from a file's name."""
    found = re.sub(r"[^a-z0-9]+", "-", stem.lower()).lstrip("-0123456789")[:40].rstrip("-")
    return found or "job"
