"""A run only continues from a checkpoint with its own settings, so a result never mixes settings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT, losses
from tests.ranks import run_ranks
from trainer.checkpoint.manifest import checksum
from trainer.config.identity import DECIDE_IN_MODE, identity
from trainer.config.settings import Settings
from trainer.engine import ledger
from trainer.tasks.synthetic import Task

pytestmark = pytest.mark.slow

BASE = {"task": "synthetic", "steps": "12", "global_batch": "32", "warmup_steps": "4"}

# Another value of each setting that a run on this machine can have.
OTHER = {
    "task": "digits",
    "mode": "dp",
    "epochs": "29",  # steps decide
    "steps": "16",
    "global_batch": "16",
    "micro_batch": "16",
    "optimizer": "adamw",
    "lr": "0.0001",
    "lr_scale": "linear",
    "lr_base_batch": "64",
    "momentum": "0.5",
    "weight_decay": "0",
    "schedule": "constant",
    "warmup_steps": "2",
    "clip_norm": "0.01",
    "precision": "bf16",
    "activation_checkpointing": "true",
    "channels_last": "true",
    "ema_decay": "0.9",
    "fingerprint_steps": "3",
    "nonfinite_allowance": "2",
    "bucket_mb": "1",
    "static_graph": "true",
    "find_unused_parameters": "true",
    "comm_hook": "fp16",
    "sync_batchnorm": "true",
    "processes": "2",
    "local_steps": "2",
    "local_state": "reset",
    "outer_lr": "0.7",
    "outer_momentum": "0.5",
    "pipeline_schedule": "gpipe",
    "stages": "2",
    "reshard": "false",
    "sequence_parallel": "false",
    "loss_parallel": "true",
    "cpu_offload": "true",
    "seed": "1",
    "init": "FILE",  # of weights, see `changed_to`
    "init_skip": "0.*",
    "freeze": "0.*",
    "data": "/tmp",
    "workers": "1",
    "download": "true",
    "model": "lstm",
    "image_size": "32",
    "bptt": "7",
    "prefetch": "3",
    "bad_samples": "1",
    "checkpoint_steps": "5",
    "checkpoint_minutes": "1",
    "checkpoint_keep": "1",
    "checkpoint_keep_every": "4",
    "checkpoint_keep_best": "1",
    "checkpoint_timeout": "100",
    "eval_steps": "6",
    "device_memory": "1",
    "ledger": "true",
    "log": "json",
    "log_steps": "3",
    "tensorboard": "true",
    "profile": "2:3",
    "preflight": "off",
    "rendezvous_timeout": "100",
    "last_call": "1",
    "peer_timeout": "2",
    "peer_losses": "1",
    "collective_timeout": "100",
    "health_timeout": "0",
}
# Where the checkpoints are, or what ends the run before it begins; devices, mesh: none here.
ELSEWHERE = {"out", "resume", "checkpoints", "dry_run", "compile", "mesh", "devices", "health"}
ELSEWHERE |= {"metrics_port", "tracker"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Return the folder of a finished run, and its events."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run_ranks(1, folder, **BASE)


def changed_to(name: str, folder: Path) -> str:
    """Return another value of a setting; for a file, one with the weights of a model of the task."""
    if OTHER[name] != "FILE":
        return OTHER[name]
    file = folder / "weights.pth"
    torch.save(Task(Settings()).model().state_dict(), file)
    return str(file)


def test_every_setting_has_another_value() -> None:
    assert {*OTHER, *ELSEWHERE} == {*Settings.model_fields}


@pytest.mark.parametrize("name", OTHER)
def test_no_figure_is_of_another_configuration(name: str, finished: Any, tmp_path: Path) -> None:
    folder, events = finished
    shutil.copytree(folder, tmp_path / "again")
    changed = BASE | {name: changed_to(name, tmp_path)}
    if name != "mode" and name in identity(Settings()):
        more = run_ranks(1, tmp_path / "again", code=64, **changed)[len(events) :]
        assert not losses(more)
        assert not {"eval", "summary"} & {event["event"] for event in more}
        assert f"TRAINER_{name.upper()} " in more[-1]["message"]
        return
    more = run_ranks(1, tmp_path / "again", **changed)[len(events) :]
    assert (name == "steps") == bool(losses(more))
    if name != "steps":  # a longer run has another learning rate in its first steps
        fresh = run_ranks(1, tmp_path / "fresh", **changed)
        assert more[-1]["accuracy"] == fresh[-1]["accuracy"]


@pytest.mark.parametrize(
    ("mode", "name"), [(mode, name) for mode, names in DECIDE_IN_MODE.items() for name in names]
)
def test_a_modes_own_numerics(mode: str, name: str, tmp_path: Path) -> None:
    settings = BASE | {"mode": mode, "processes": "1"}
    ranks = 1 if mode == "hogwild" else 2
    run_ranks(ranks, tmp_path, **settings)
    refused = run_ranks(ranks, tmp_path, code=64, **settings | {name: changed_to(name, tmp_path)})
    assert f"TRAINER_{name.upper()} " in refused[-1]["message"]
    refused = run_ranks(ranks, tmp_path, code=64, **settings | {"mode": "auto"})
    assert f"TRAINER_MODE 'any that equals one process', was {mode!r}" in refused[-1]["message"]


def test_the_refusal_names_what_differs_and_the_ways_out(finished: Any, tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "again")
    changed = BASE | {"lr": "0.0001", "global_batch": "64"}
    message = run_ranks(1, tmp_path / "again", code=64, **changed)[-1]["message"]
    assert "TRAINER_GLOBAL_BATCH 64, was 32; TRAINER_LR 0.0001, was 0.03; to train from" in message
    for way in ("another TRAINER_OUT", "TRAINER_RESUME=never", "make run FRESH=1"):
        assert way in message


def test_fewer_steps_are_refused_and_epochs_count_as_steps(finished: Any, tmp_path: Path) -> None:
    folder, events = finished
    shutil.copytree(folder, tmp_path / "again")
    fewer = BASE | {"steps": "11"}
    assert "steps 11, was 12" in run_ranks(1, tmp_path / "again", code=64, **fewer)[-1]["message"]
    size = events[0]["samples"]
    whole = {"task": "synthetic", "epochs": "1", "global_batch": str(size // 2)}
    before = run_ranks(1, tmp_path / "epochs", **whole)
    same = run_ranks(1, tmp_path / "epochs", **whole | {"steps": "2", "epochs": "9"})[len(before) :]
    assert not losses(same)
    assert same[-1]["accuracy"] == before[-1]["accuracy"]


def test_a_run_with_more_epochs_or_another_batch_resumes_after_a_stop(tmp_path: Path) -> None:
    base = {"task": "synthetic", "epochs": "1", "checkpoint_steps": "1", "ledger": "true"}
    size = run_ranks(1, tmp_path / "size", task="synthetic", steps="1")[0]["samples"]
    base["global_batch"] = str(2 * size // 3)  # an epoch takes two steps, but two epochs take three
    run_ranks(1, tmp_path, **base)
    longer = base | {"epochs": "2"}
    whole = run_ranks(1, tmp_path, **longer)
    assert whole[-1]["steps"] == 4
    assert "used once in each of 2 epochs" in ledger.check(ledger.read(tmp_path))
    shutil.rmtree(tmp_path / "checkpoints/step-00000004")  # as if it had been stopped before
    again = run_ranks(1, tmp_path, **longer)
    assert list(losses(again[len(whole) :])) == [4]
    assert "steps 3, was 4" in run_ranks(1, tmp_path, code=64, **base)[-1]["message"]
    smaller = {**base, "epochs": "4", "global_batch": str(size // 3)}
    before = run_ranks(1, tmp_path, resume="force", **smaller)
    shutil.rmtree(max((tmp_path / "checkpoints").glob("step-*")))
    after = run_ranks(1, tmp_path, **smaller)
    assert after[-1]["steps"] == before[-1]["steps"]


@pytest.mark.parametrize("name", ["lr", "optimizer", "ema_decay", "precision", "seed"])
def test_force_goes_on_with_other_settings(name: str, finished: Any, tmp_path: Path) -> None:
    folder, events = finished
    shutil.copytree(folder, tmp_path / "again")
    changed = BASE | {"steps": "15", name: changed_to(name, tmp_path)}
    more = run_ranks(1, tmp_path / "again", resume="force", **changed)[len(events) :]
    assert list(losses(more)) == [13, 14, 15]
    run_ranks(1, tmp_path / "again", **changed)  # its checkpoints have these settings
    named = f"force:{tmp_path / 'again/checkpoints/step-00000012'}"
    elsewhere = run_ranks(1, tmp_path / "elsewhere", resume=named, **changed)
    assert losses(elsewhere) == losses(more)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"optimizer": "adamw", "freeze": "0.*"}, {"optimizer": "adamw"}),
        ({"momentum": "0"}, {"momentum": "0.9"}),
    ],
)
def test_force_trains_what_had_no_state(then: Any, now: Any, tmp_path: Path) -> None:
    after = []
    for ranks, mode in ((1, "single"), (2, "ddp-zero1"), (2, "fsdp")):
        base = BASE | {"mode": mode}
        before = run_ranks(ranks, tmp_path / mode, **base, **then)
        more = base | now | {"steps": "15"}
        events = run_ranks(ranks, tmp_path / mode, resume="force", **more)[len(before) :]
        after.append(losses(events))
    assert list(after[0]) == [13, 14, 15]
    assert after[1] == pytest.approx(after[0], rel=1e-4)
    assert after[2] == pytest.approx(after[0], rel=1e-4)


def test_an_average_that_is_new_starts_from_the_checkpoints_weights(
    finished: Any, tmp_path: Path
) -> None:
    folder, events = finished
    shutil.copytree(folder, tmp_path / "again")
    # So slow that after three steps it is still what it started from.
    changed = BASE | {"steps": "15", "ema_decay": "0.999999", "resume": "force"}
    more = run_ranks(1, tmp_path / "again", **changed)
    assert more[-1]["accuracy"] == events[-1]["accuracy"]


def test_another_code_of_ones_own_task_is_refused(start: Any, tmp_path: Path) -> None:
    code = (
        "from trainer.tasks.synthetic import Task\n\nclass Own(Task):\n    factor = {}\n"
        "    def loss(self, outputs, targets):\n"
        "        return super().loss(outputs, targets) * self.factor\n"
    )
    env = {f"TRAINER_{name.upper()}": value for name, value in BASE.items()}
    env |= {"TRAINER_TASK": "own:Own", "TRAINER_OUT": str(tmp_path / "run"), "TRAINER_LOG": "json"}
    env |= {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    # A comment, or the mark with which some editors begin a file, is no other code.
    for start_of_file in ("", "# only a comment\n\n", "\ufeff"):
        (tmp_path / "own.py").write_text(start_of_file + code.format(1))
        ended = start("-m", "trainer", **env).end()
        assert ended.code == 0, ended.stderr
    (tmp_path / "own.py").write_text(code.format(2))
    ended = start("-m", "trainer", **env).end()
    assert ended.code == 64
    assert "the task's code '" in ended.of("error")[0]["message"]


def test_a_checkpoint_of_an_older_muster_is_resumed_with_a_warning(
    finished: Any, tmp_path: Path
) -> None:
    folder, _ = finished
    shutil.copytree(folder, tmp_path / "again")
    for file in (tmp_path / "again/checkpoints").glob("*/muster.json"):
        body = json.loads(file.read_text())["checkpoint"]
        del body["progress"]["identity"], body["progress"]["steps"]
        body["format"] = 1
        file.write_text(json.dumps({"checksum": checksum(body), "checkpoint": body}))
    events = run_ranks(1, tmp_path / "again", **BASE | {"steps": "14"})
    assert events[-1]["steps"] == 14
    refused = run_ranks(1, tmp_path / "again", code=64, **BASE | {"steps": "14", "seed": "3"})
    assert "TRAINER_SEED 3, was 0" in refused[-1]["message"]
