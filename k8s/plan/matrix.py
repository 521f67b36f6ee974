"""The jobs of a matrix: a job file for each combination of values, with a name that says which.

render.py k8s/jobs/16-matrix.yaml --plan
"""

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from k8s.base.errors import config_error
from k8s.jobfile import load
from k8s.jobfile.load import JobFile
from k8s.jobfile.spec import MATRIX, Matrix
from k8s.jobfile.validate import validate

_MOST = 256  # jobs of one matrix
_LONGEST = 40  # of a name that is made here: pods and Services have longer ones, made from it
_DIGEST = 8  # characters of a hash, which tell apart what words do not

Values = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One job: its file, without a matrix, and the `values` of the matrix in it, none without one."""

    job: JobFile
    values: Values = field(default_factory=dict)
    max_parallel: int | None = None


def cells(job: JobFile) -> list[Cell]:
    """Return the jobs of a job file: itself, or one for each cell of its matrix. Raises Fault(64)."""
    if job.values.get("matrix") is None:
        return [Cell(job)]
    spec = validate({key: job.values[key] for key in ("name", "matrix") if key in job.values})
    matrix = spec.matrix or Matrix()
    varied: dict[str, list[Any]] = matrix.model_extra or {}
    _check(varied, job)
    made = _combinations(varied, matrix.exclude)
    base = replace(job, values={key: job.values[key] for key in job.values if key != "matrix"})
    return [
        Cell(_named(load.varied(base, values), spec.name, name), values, matrix.max_parallel)
        for values, name in zip(made, names(spec.name, made), strict=True)
    ]


def _check(varied: dict[str, list[Any]], job: JobFile) -> None:
    if not varied:
        raise config_error("matrix: has no keys; add one, e.g. trainer.lr: [0.01, 0.03]")
    if (count := math.prod(map(len, varied.values()))) > _MOST:
        raise config_error(f"matrix: {count:,} combinations, but at most {_MOST} are allowed")
    paths = {key: load.parts_of(key) for key in varied}
    for key, path in paths.items():
        _check_key(key, path, job)
        for other, inner in paths.items():
            if other != key and inner[: len(path)] == path:
                raise config_error(f"matrix.{other}: {key} sets it too; leave out one of them")
        for value in varied[key]:
            if varied[key].count(value) > 1:
                raise config_error(
                    f"matrix.{key}: {text_of(value)} is in the list twice; leave out one"
                )


def _check_key(key: str, path: list[str], job: JobFile) -> None:
    if not path:
        raise config_error(f"matrix.{key}: not a key that --set takes, e.g. trainer.lr")
    if path[0] in ("name", "matrix"):
        raise config_error(
            f"matrix.{key}: cannot be varied; the jobs' names are made from the other keys"
        )
    if job.origins.get(key) == load.OPTION:
        raise config_error(
            f"matrix.{key}: --set {key} sets it too; leave that out, or remove the key from the matrix: "
            f"--set 'matrix[{key}]='"
        )


def _combinations(varied: dict[str, list[Any]], exclude: list[Values]) -> list[Values]:
    """Return the values of each cell, those of the last key changing fastest. Raises Fault(64)."""
    combined = itertools.product(*varied.values())
    made = [dict(zip(varied, values, strict=True)) for values in combined]
    left_out: set[int] = set()
    for index, item in enumerate(exclude):
        at = f"matrix.exclude[{index}]"
        if unknown := [key for key in item if key not in varied]:
            raise config_error(f"{at}: {unknown[0]} is not varied; choose {', '.join(varied)}")
        found = {n for n, cell in enumerate(made) if all(cell[key] == item[key] for key in item)}
        if not found:
            raise config_error(
                f"{at}: no combination has {text_of(item)}; compare it with the lists"
            )
        left_out |= found
    if len(left_out) == len(made):
        raise config_error("matrix.exclude: leaves no combination; remove an item")
    return [cell for number, cell in enumerate(made) if number not in left_out]


def names(base: str, made: list[Values]) -> list[str]:
    """Return a name for each cell: the job file's, and each key and value in short, by key.

    So a name stays when keys or values change places, or values are added. A name that is too long, or
    another's too, ends in a hash of the values.
    """
    short = _short(list(made[0]))
    whole = [
        "-".join(
            [base, *filter(None, (_word(short[key] + text_of(cell[key])) for key in sorted(cell)))]
        )
        for cell in made
    ]
    times = Counter(whole)
    longest = max(_LONGEST - 1 - _DIGEST, len(base))
    return [
        name
        if times[name] == 1 and len(name) <= _LONGEST
        else f"{name[:longest].rstrip('-')}-{_digest(cell)}"
        for name, cell in zip(whole, made, strict=True)
    ]


def _short(keys: list[str]) -> dict[str, str]:
    """Return the end of each key that no other has, e.g. `lr` for trainer.lr."""
    paths = {key: [part.strip("[]") for part in load.parts_of(key)] for key in keys}

    def end(key: str) -> str:
        path = paths[key]
        for size in range(1, len(path)):
            if sum(other[-size:] == path[-size:] for other in paths.values()) == 1:
                return "-".join(path[-size:])
        return "-".join(path)

    return {key: end(key) for key in keys}


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def text_of(value: Any) -> str:
    """Return a value as a table and a name have it."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _digest(cell: Values) -> str:
    text = json.dumps(cell, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def _named(job: JobFile, of: str, name: str) -> JobFile:
    """Return a cell's job with its name, the label of the matrix, and folders that no other has."""
    values = job.values | {"name": name}
    if isinstance(labels := values.get("labels", {}), dict):
        values["labels"] = labels | {MATRIX: of}
    if isinstance(trainer := values.get("trainer"), dict):
        shared = {key: trainer[key] for key in ("out", "checkpoints") if trainer.get(key)}
        own = {key: f"{str(path).rstrip('/')}/{name}" for key, path in shared.items()}
        values["trainer"] = trainer | own
    return replace(job, values=values)
