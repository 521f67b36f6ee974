"""What `render.py` accepts, a run starts with; what it refuses, a run refuses: random job files.

A run is a dry run here: the real mesh, model and strategy, on torch's fake group. `make test-parity` has
500 pairs, `make test` forty.
"""

import random
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli.command import main
from k8s.jobfile.validate import settings_of, validate
from tests.parity.table import WHOLE
from trainer.config.environment import environment_of, from_environment
from trainer.config.exits import Exit, Fault
from trainer.config.modes import MODES
from trainer.tools import dry_run

pytestmark = pytest.mark.slow

TASKS = ["digits", "synthetic", "charlm-gpt", "charlm-gpt", "charlm-gru", "tokens", "seqclass"]
# What a job may set besides; each key is in one pair of seven.
MORE: dict[str, list[Any]] = {
    "globalBatch": [2, 16, 30],
    "microBatch": [1, 2, 3, 4],
    "pipelineSchedule": ["gpipe", "1f1b", "interleaved-1f1b", "interleaved-zb", "zbv"],
    "stages": [1, 2, 3, 4, 5, 8],
    "precision": ["bf16", "fp16", "fp64"],
    "activationCheckpointing": [True],
    "fingerprintSteps": [2],
    "emaDecay": [0.9],
    "staticGraph": [True],
    "commHook": ["fp16", "powersgd"],
    "cpuOffload": [True],
    "reshard": [False],
    "sequenceParallel": [False],
    "lossParallel": [True],
    "outerLr": [0.7],
    "optimizer": ["sgd", "adamw"],
    "freeze": ["*.bias"],
}


def pair(number: int) -> dict[str, Any]:
    """Return the values of a job file, decided by its number."""
    dice = random.Random(number)  # noqa: S311
    mode = dice.choice(list(MODES))
    sizes = {axis: dice.choice([1, 2, 2, 3, 4]) for axis in MODES[mode].axes}
    trainer = {
        "task": dice.choice(TASKS),
        "mode": mode,
        "mesh": ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1),
        "globalBatch": 48,
    }
    if trainer["task"] == "charlm-gru":
        trainer["globalBatch"] = 12  # a fake GRU takes an operator for each gate of each byte
    if trainer["task"] == "tokens":
        trainer["model"] = dice.choice(["tiny", "tiny-tied"])
    trainer |= {key: dice.choice(values) for key, values in MORE.items() if dice.random() < 0.15}
    if trainer["task"] == "tokens" and "freeze" in trainer:
        # It has no bias. Rendering knows no names of tensors; `--check` does.
        trainer["freeze"] = "*norm*"
    if mode == "hogwild":
        trainer["processes"] = 2
    if dice.random() < 0.1:
        trainer["mode"] = "auto"
    ranks = prod(sizes.values()) if dice.random() < 0.9 else dice.choice([1, 2, 4])
    place = {"nodes": ranks} if dice.random() < 0.5 else {"procsPerNode": ranks}
    return {"name": "fuzzed", "image": "muster:cpu", "launcher": "job", **place, "trainer": trainer}


def rendered(values: dict[str, Any], folder: Path) -> bool:
    """Return whether the job file is rendered."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    code = main([str(file), "-o", str(folder / "rendered")])
    assert code in (0, 64)
    return code == 0


def started(values: dict[str, Any], folder: Path) -> str:
    """Return why a run of these settings is refused."""
    spec = validate(values)
    environment = environment_of(settings_of(spec)) | {"TRAINER_OUT": str(folder)}
    try:
        dry_run.run(
            from_environment(environment), int(spec.most_nodes) * (spec.procs_per_node or 1)
        )
    except Fault as fault:
        return f"{fault.code}: {fault}"
    return ""


@pytest.mark.parametrize("number", range(500 if WHOLE else 40))
def test_what_is_rendered_starts_and_what_is_refused_does_not(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = pair(number)
    is_rendered = rendered(values, tmp_path)
    refusal = started(values, tmp_path / "run")
    assert is_rendered == (not refusal), (values, refusal, capsys.readouterr().err)
    assert refusal[:2] in ("", str(int(Exit.CONFIG)))


def test_both_kinds_are_many(tmp_path: Path) -> None:
    found = [rendered(pair(number), tmp_path) for number in range(100)]
    assert 20 < sum(found) < 80
