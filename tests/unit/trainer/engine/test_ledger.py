"""The ledger accepts every correct history of attempts, and finds samples lost or used twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.order import Order, training_shares
from trainer.engine import ledger
from trainer.plan.sizing import size


def write(folder: Path, attempt: int, rank: int, steps: dict[int, list[int]], **head: int) -> None:
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = [head]
    lines += [{"step": step, "samples": samples} for step, samples in steps.items()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (logs / f"ledger-{attempt:06d}-rank{rank}.jsonl").write_text(text)


def shares(length: int, batch: int, ranks: int, epochs: int) -> list[dict[int, list[int]]]:
    """Return every rank's samples of every step."""
    sizes = size(Settings(global_batch=batch, mode="ddp"), ranks, label=str, uneven=True).batches
    order = Order(0, length, epochs * length)
    return [
        {
            step: samples.indices[samples.weights > 0].tolist()
            for step, samples in enumerate(training_shares(order, sizes, rank, start=0), start=1)
        }
        for rank in range(ranks)
    ]


@settings(deadline=None)
@given(st.integers(2, 30), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_history_of_any_world_sizes_has_every_sample_once(
    length: int, batch: int, ranks: int, later: int, data: Any
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = len(shares(length, batch, 1, 3)[0])
        reached = data.draw(st.integers(1, count))
        back = data.draw(st.integers(0, reached))
        head = {"length": length, "batch": batch, "after": 0}
        for rank, steps in enumerate(shares(length, batch, ranks, 3)):
            done = {s: x for s, x in steps.items() if s <= reached - (rank > 0)}  # one got further
            write(folder, 1, rank, done, **head)
        for rank, steps in enumerate(shares(length, batch, later, 3)):
            write(folder, 2, rank, {s: x for s, x in steps.items() if s > max(0, back - 1)}, **head)
        history = ledger.read(folder)
        assert "used once in each of 3 epochs" in ledger.check(history)
        assert history.attempts == 2


def test_an_epoch_may_end_with_a_short_step_as_in_a_run_that_was_extended(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, {1: [0, 1], 2: [2], 3: [2, 0], 4: [1]}, length=3, batch=2, after=0)
    assert "each of 3 samples was used once in each of 2 epochs" in ledger.check(
        ledger.read(tmp_path)
    )


WRONG = [
    ({1: [0, 1], 3: [2, 3]}, "step 2 is missing"),
    ({1: [0, 1], 2: [2], 3: [3, 0]}, "step 2 used 1 samples, not 2"),
    ({1: [0, 1], 2: [2, 1]}, "step 2 used sample 1 once too often"),
    ({1: [0, 1], 2: [2, 0]}, "step 2 used sample 0 once too often"),
    ({1: [0, 1], 2: [2, 3], 3: [1, 1]}, "step 3 used sample 1 once too often"),
]


@pytest.mark.parametrize(("steps", "message"), WRONG)
def test_the_first_error_is_named(
    steps: dict[int, list[int]], message: str, tmp_path: Path
) -> None:
    write(tmp_path, 1, 0, steps, length=4, batch=2, after=0)
    with pytest.raises(Fault, match=message) as caught:
        ledger.check(ledger.read(tmp_path))
    assert caught.value.code == Exit.DATA


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, {1: [0, 1]}, length=4, batch=2, after=0)
    with (tmp_path / "logs/ledger-000001-rank0.jsonl").open("a") as file:
        file.write('{"step": 2, "sam')
    with pytest.raises(Fault, match="rank0.jsonl, line 3: not a ledger entry") as caught:
        ledger.read(tmp_path)
    assert caught.value.code == Exit.DATA


def test_a_run_without_a_ledger_is_asked_to_set_the_setting(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="TRAINER_LEDGER=true writes one"):
        ledger.read(tmp_path)
