"""A data set costs a machine its size once, whatever the number of local ranks."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.ranks import run_ranks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.tasks import synthetic

pytestmark = pytest.mark.slow

RANKS = 4
ROW = 4096
DDP = {"mode": "ddp", "preflight": "off", "steps": "4", "eval_steps": "0"}


class Measured(Tensors):
    """Touches every byte at the first batch, and writes down at the ninth what the rank holds."""

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        calls = int(os.environ.get("CALLS", "0")) + 1
        os.environ["CALLS"] = str(calls)
        if calls == 1:
            self.inputs.max()
        # Each rank has met every other since its first step; six are read before, by rank 0 seven.
        if calls == 9:
            rollup = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
            maps = Path("/proc/self/maps").read_text(encoding="utf-8")
            # no name in any file system: gone with the last rank, even if all are killed
            assert ("/memfd:muster-data (deleted)" in maps) != ("COPIED" in os.environ)
            (pss,) = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
            Path(f"{os.environ['PSS']}-{os.environ['RANK']}").write_text(pss, encoding="utf-8")
        inputs, targets = super().batch(indices)
        return inputs[:, :64].float() / 255, targets


class Big(synthetic.Task):
    def data(self, *, train: bool) -> Tensors:
        count = int(os.environ["BYTES"]) // ROW if train else 8
        data = torch.arange(count * ROW, dtype=torch.uint8).view(count, ROW)
        return Measured(data, torch.zeros(count, dtype=torch.long))


def _begin(size: int, file: str, *, copied: bool) -> None:
    os.environ |= {"BYTES": str(size), "PSS": file}
    if copied:
        os.environ["COPIED"] = "yes"
        from trainer.engine import loop

        loop.once_per_machine = lambda build, _, **__: build()


def resident_bytes(folder: Path, size: int, *, copied: bool = False) -> int:
    """Return the bytes that four ranks hold together, memory they share counted once."""
    folder.mkdir()
    before = partial(_begin, size, str(folder / "pss"), copied=copied)
    run_ranks(RANKS, folder, before, task="tests.parity.test_shared:Big", **DDP)
    files = list(folder.glob("pss-*"))
    assert len(files) == RANKS
    return sum(1024 * int(file.read_text()) for file in files)


def test_two_hundred_megabytes_are_held_once(tmp_path: Path) -> None:
    nothing = resident_bytes(tmp_path / "nothing", 32 * ROW)
    shared = (resident_bytes(tmp_path / "shared", 200_000_000) - nothing) / 200_000_000
    copied = (resident_bytes(tmp_path / "copied", 50_000_000, copied=True) - nothing) / 50_000_000
    print(f"{RANKS} ranks hold a data set {shared:.2f} times, copied {copied:.2f} times")
    assert 0.9 < shared <= 1.2
    assert copied > 3  # planted: the test sees a copy


def _measure_windows(file: str) -> None:
    """Read a whole file of tokens at its first batch; write down at the fifth what the rank holds."""
    from trainer.tasks.parts import token_files

    take, calls = token_files.Windows.batch, 0

    def batch(self: token_files.Windows, indices: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += len(self) > 1_000  # not of the test set
        if calls == 1:
            self._tokens.max()
        if calls == 5:
            rollup = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
            (pss,) = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
            Path(f"{file}-{os.environ['RANK']}").write_text(pss, encoding="utf-8")
        return take(self, indices)

    token_files.Windows.batch = batch  # type: ignore[method-assign]


def held_by_four(folder: Path, size: int) -> int:
    """Return the bytes that four ranks hold, all of which have read a file of so many bytes."""
    folder.mkdir()
    for name, length in (("train.bin", size), ("val.bin", 4_000)):
        with (folder / name).open("wb") as file:
            file.truncate(length)
    (folder / "meta.json").write_text('{"vocabulary": 256}')
    wanted = {"task": "tokens", "data": str(folder), "global_batch": "4", "checkpoint_steps": "0"}
    before = partial(_measure_windows, str(folder / "pss"))
    run_ranks(RANKS, folder / "run", before, **(DDP | wanted | {"steps": "6"}))
    files = list(folder.glob("pss-*"))
    assert len(files) == RANKS
    return sum(1024 * int(file.read_text()) for file in files)


def test_a_file_of_two_gigabytes_of_tokens_is_held_once(tmp_path: Path) -> None:
    size = 2_000_000_000
    small = held_by_four(tmp_path / "small", 1_000_000)
    held = (held_by_four(tmp_path / "large", size) - small) / size
    print(f"{RANKS} ranks hold a file of tokens {held:.3f} times")
    # An epoch's order is each rank's own: 8 bytes for a window of 128 tokens, an eighth in all.
    assert 0.9 < held < 1.2


class Noted(synthetic.Task):
    """Records which rank reads the data, and finds it damaged if FAULTY is set."""

    def data(self, *, train: bool) -> Tensors:
        with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as file:
            file.write(f"{os.environ['RANK']} {train}\n")
        if os.environ["FAULTY"]:
            raise Fault(Exit.DATA, "the data is damaged")
        return super().data(train=train)


def _two_machines(notes: str, faulty: str) -> None:
    """Make ranks 0 and 1 those of one machine, 2 and 3 those of another."""
    rank = int(os.environ["RANK"])
    os.environ |= {"NOTES": notes, "FAULTY": faulty}
    os.environ |= {"GROUP_RANK": str(rank // 2), "LOCAL_RANK": str(rank % 2)}


@pytest.mark.parametrize("faulty", ["", "yes"])
def test_one_rank_of_every_machine_reads_and_its_fault_is_that_of_all(
    faulty: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    before = partial(_two_machines, str(notes), faulty)
    task = {"task": "tests.parity.test_shared:Noted"}
    events = run_ranks(4, tmp_path, before, code=Exit.DATA if faulty else 0, **task, **DDP)
    read = sorted(notes.read_text(encoding="utf-8").splitlines())
    assert read == (["0 True", "2 True"] if faulty else ["0 False", "0 True", "2 False", "2 True"])
    if faulty:
        assert events[-1]["message"] == "the data is damaged"
        return
    alone = run_ranks(1, tmp_path / "alone", task="synthetic", **(DDP | {"mode": "single"}))
    losses = [[e["loss"] for e in run if e["event"] == "step"] for run in (events, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


class Weighted(synthetic.Task):
    """Counts its classes in data(), for the loss: by a new attribute, and by one that is filled."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._rare: dict[int, float] = {}

    def data(self, *, train: bool) -> Tensors:
        data = super().data(train=train)
        if train:
            self._weights = torch.arange(1.0, 11)
            self._rare[0] = 5.0
        return data

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets) * self._weights[targets] * self._rare.get(0, 1.0)


def test_what_data_sets_in_the_task_is_set_on_every_rank(tmp_path: Path) -> None:
    task = {"task": "tests.parity.test_shared:Weighted"}
    two = run_ranks(2, tmp_path / "two", **task, **DDP)
    one = run_ranks(1, tmp_path / "one", **task, **(DDP | {"mode": "single"}))
    losses = [[e["loss"] for e in run if e["event"] == "step"] for run in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
