"""Thousands of damaged checkpoints and settings: never a wrong resume, never code run, always a code.

A folder has two checkpoints. Each case damages them in a random way, with the seed MUSTER_FUZZ_SEED.
Then a run must resume from one of the two, unchanged, or raise Fault(65).
"""

import json
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.checkpoint.small import equal, found, loaded, save, trained
from tests.conftest import run_command
from trainer.checkpoint.find import Found
from trainer.checkpoint.manifest import MANIFEST_FILE
from trainer.config.environment import from_environment
from trainer.config.exits import Exit, Fault

CASES = int(os.environ.get("MUSTER_FUZZ_CASES", "2000"))
SEED = int(os.environ.get("MUSTER_FUZZ_SEED", "4"))


class Bomb:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.trace),))


def a_file(folder: Path, chance: Random) -> Path:
    return chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


def flip(folder: Path, chance: Random) -> None:
    file = a_file(folder, chance)
    data = bytearray(file.read_bytes()) or bytearray(1)
    for _ in range(chance.choice((1, 1, 1, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def cut(folder: Path, chance: Random) -> None:
    file = a_file(folder, chance)
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data))])


def grow(folder: Path, chance: Random) -> None:
    file = a_file(folder, chance)
    file.write_bytes(file.read_bytes() + chance.randbytes(chance.randrange(1, 9)))


def remove(folder: Path, chance: Random) -> None:
    a_file(folder, chance).unlink()


def swap(folder: Path, chance: Random) -> None:
    one, other = a_file(folder, chance), a_file(folder, chance)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def swap_folders(folder: Path, chance: Random) -> None:
    one, other = sorted(folder.iterdir())
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)


def rename_folder(folder: Path, chance: Random) -> None:
    path = chance.choice(sorted(folder.iterdir()))
    path.rename(folder / f"step-{chance.randrange(10**8):08d}")


def exchange(folder: Path, chance: Random) -> None:
    """Put another value at a random place of a manifest, whose checksum stays."""
    file = chance.choice(sorted(folder.rglob(MANIFEST_FILE)))
    outer = json.loads(file.read_text(encoding="utf-8"))
    place: Any = outer
    while True:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.1:
            break
        place = inner
    place[key] = chance.choice((None, -1, 10**30, 1.5, "x", [], {}, [[]], True, float("nan")))
    file.write_text(json.dumps(outer), encoding="utf-8")


def nest(folder: Path, chance: Random) -> None:
    a_file(folder, chance).write_bytes(b"[" * 100_000)


def plant(folder: Path, chance: Random) -> None:
    trace = folder.parent / "trace"
    content = chance.choice((pickle.dumps(Bomb(trace)), torch_bomb(folder.parent, trace)))
    chance.choice((a_file(folder, chance), folder / "step-00000002" / ".metadata")).write_bytes(
        content
    )


def torch_bomb(folder: Path, trace: Path) -> bytes:
    torch.save({"model": Bomb(trace)}, folder / "bomb")
    return (folder / "bomb").read_bytes()


MUTATIONS: list[Callable[[Path, Random], None]] = [
    *(flip, flip, flip, cut, cut, grow, remove, swap, swap),
    *(swap_folders, rename_folder, exchange, exchange, nest, plant),
]


def resume_from(folder: Path) -> Found | Exit | None:
    try:
        return found(folder)
    except Fault as fault:
        return fault.code


@pytest.mark.slow
def test_a_mutated_checkpoint_is_never_resumed_from(tmp_path: Path, capsys: Any) -> None:
    intact, folder = tmp_path / "intact", tmp_path / "checkpoints"
    for step in (1, 2):
        save(intact, step)
    expected = {step: trained(step) for step in (1, 2)}
    resumed = dict.fromkeys((1, 2, None), 0)
    for case in range(CASES):
        chance = random.Random(f"{SEED} {case}")  # noqa: S311
        shutil.copytree(intact, folder)
        chance.choice(MUTATIONS)(folder, chance)
        if chance.random() < 0.3:
            flip(folder, chance)
        outcome = resume_from(folder)
        if isinstance(outcome, Found):
            progress = outcome.manifest.progress
            assert progress.samples == progress.step * 64, case
            assert equal(loaded(outcome), expected[progress.step]), case
            resumed[progress.step] += 1
        else:
            assert outcome == Exit.DATA, case
            resumed[None] += 1
        assert not (tmp_path / "trace").exists(), f"case {case} ran code from a file"
        shutil.rmtree(folder)
    capsys.readouterr()
    print(f"resumed from {resumed}")
    assert all(count > CASES / 50 for count in resumed.values()), resumed


def test_a_bomb_would_go_off_if_it_were_loaded(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "trace")))  # noqa: S301
    assert (tmp_path / "trace").exists()


def code_of(variables: dict[str, str]) -> Exit | None:
    try:
        from_environment(variables)
    except Fault as fault:
        return fault.code
    return None


def test_mutated_settings_are_64_or_settings() -> None:
    chance = random.Random(SEED)  # noqa: S311
    good = {"TRAINER_STEPS": "10", "TRAINER_LR": "0.1", "TRAINER_LOG": "json"}
    names = [*good, "TRAINER_CHECKPOINT_KEEP", "TRAINER_RESUME", "TRAINER_CHECKPOINTS", "TRAINER_X"]
    for _ in range(CASES):
        variables = dict(good)
        text = "".join(chance.choice("0123456789.-+eE_ nainf\x01é\"'{}[]/%$\\") for _ in range(5))
        variables[chance.choice(names)] = text[: chance.randrange(6)]
        assert code_of(variables) in (None, Exit.CONFIG)


@pytest.mark.slow
def test_a_process_that_finds_only_damage_ends_with_65_and_no_traceback(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 2)
    flip(tmp_path / "checkpoints", random.Random(SEED))  # noqa: S311
    ended = run_command(
        [sys.executable, "-m", "trainer"], env={"TRAINER_OUT": str(tmp_path), "TRAINER_STEPS": "3"}
    )
    assert ended.returncode == 65
    assert "all 1 checkpoints are damaged; TRAINER_RESUME=never starts over" in ended.stderr
    assert "Traceback" not in ended.stderr
