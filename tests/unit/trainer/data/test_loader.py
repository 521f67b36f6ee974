"""How batches are read: workers give the same batches as memory, whichever worker reads."""

import random
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Subset

import tests.ranks
from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.order import Order, Samples, training_shares
from trainer.data.sets import Tensors
from trainer.plan.batches import divide_batch

CPU = torch.device("cpu")
WORKERS = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def server(request: pytest.FixtureRequest) -> None:
    """Start the shared fork server before a loader with workers starts it with fewer modules."""
    if request.node.get_closest_marker("slow"):
        tests.ranks.start_server()


def shares(order: Order, micro: int = 2, *, start: int = 0) -> list[Samples]:
    return list(training_shares(order, divide_batch(4, micro, 1, label=str), 0, start=start))


class Squares:
    """A map-style data set."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index**2


def test_a_part_of_tensors_is_read_like_tensors_of_that_part() -> None:
    numbers = torch.arange(10)
    whole: Any = Tensors(numbers[:, None].float(), numbers**2)
    part: Subset[Any] = Subset(whole, range(4, 8))
    (batch,) = Loader(part, device=CPU)(iter([Samples(torch.tensor([3, 0]), torch.ones(2))]))
    assert batch.inputs.tolist() == [[7.0], [4.0]]
    assert batch.targets.tolist() == [49, 16]


class Locked(Squares):
    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.slow
def test_data_that_no_worker_can_get_is_refused() -> None:
    loader = Loader(Locked(), device=CPU, workers=1)
    with pytest.raises(
        Fault, match="a Locked, cannot be sent to loader processes: .*lock"
    ) as caught:
        next(loader(iter(shares(Order(0, 10, 20)))))
    assert caught.value.code == Exit.CONFIG


@WORKERS
def test_data_read_by_workers_is_the_same_as_in_memory_pass_after_pass(workers: int) -> None:
    numbers = torch.arange(10)
    in_memory = Tensors(numbers[:, None].float(), numbers**2)
    wanted = shares(Order(0, 10, 20))
    direct = list(Loader(in_memory, device=CPU)(iter(wanted)))
    loader = Loader(Squares(), device=CPU, workers=workers)
    list(islice(loader(iter(wanted)), 3))  # abandoned, like an evaluation that a stop ends
    for _ in range(2):
        loaded = list(loader(iter(wanted)))
        assert len(direct) == len(loaded) == 10
        for one, other in zip(direct, loaded, strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.targets, other.targets)
            assert torch.equal(one.weights, other.weights)


class Noise(Squares):
    """Draws from all three generators, as random transforms do, and returns the number of the worker."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        info = torch.utils.data.get_worker_info()
        drawn = [
            random.uniform(0, 1),  # noqa: S311
            float(np.random.rand()),
            float(torch.rand(1)),
        ]
        return torch.tensor(drawn, dtype=torch.float64), info.id if info else 0


@pytest.mark.slow
def test_what_a_sample_draws_is_its_own_whichever_worker_reads_it() -> None:
    def drawn(workers: int, start: int = 0) -> tuple[torch.Tensor, set[int]]:
        loader = Loader(Noise(), device=CPU, workers=workers, dtype=torch.float64)
        read = list(loader(iter(shares(Order(3, 10, 40), start=start))))
        ids = {int(i) for batch in read for i in batch.targets}
        return torch.cat([batch.inputs for batch in read]), ids

    before = random.getstate(), torch.get_rng_state()
    alone, _ = drawn(0)
    assert before[0] == random.getstate()  # the training's own random numbers are not changed
    assert torch.equal(before[1], torch.get_rng_state())
    many, workers = drawn(3)
    assert workers == {0, 1, 2}
    assert torch.equal(alone, many)
    assert torch.equal(drawn(2, start=8)[0], alone[8:])
    assert len(set(alone.flatten().tolist())) == alone.numel() == 3 * 40


class Damaged(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 7:
            raise Fault(Exit.DATA, "sample 7 of squares cannot be read")
        return super().__getitem__(index)


@WORKERS
def test_a_fault_in_a_worker_keeps_its_code_and_its_words(workers: int) -> None:
    loader = Loader(Damaged(), device=CPU, workers=workers)
    with pytest.raises(Fault, match="^sample 7 of squares cannot be read$") as caught:
        list(loader(iter(shares(Order(0, 10, 10)))))
    assert caught.value.code == Exit.DATA


SCRIPT = """
import torch
from tests.unit.trainer.data.test_loader import Squares, shares
from trainer.data.loader import Loader
from trainer.data.order import Order

if __name__ == "__main__":
    batches = Loader(Squares(), device=torch.device("cpu"), workers=1)(iter(shares(Order(0, 10, 40))))
    next(batches)
    raise ValueError("with a pass half read")
"""


@pytest.mark.slow
def test_workers_start_if_the_path_of_temporary_files_is_too_long_for_a_socket(
    start: Any, tmp_path: Path
) -> None:
    temporary = tmp_path / ("x" * 100)
    temporary.mkdir()
    script = f"from {__name__} import *\n"
    script += "data = Loader(Squares(), device=CPU, workers=1)\n"
    script += "print(len(list(data(iter(shares(Order(0, 10, 40)))))))"
    ended = start("-c", script, TMPDIR=str(temporary)).end()
    assert ended.code == 0, ended.stderr


@pytest.mark.slow
def test_an_error_with_workers_at_work_ends_the_process(start: Any) -> None:
    """They block SIGTERM, with which multiprocessing would end them, and then wait without end."""
    started = start("-c", SCRIPT)
    started.wait_for("with a pass half read")
    family = started.family()
    assert started.process.wait(30) == 1
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_images_may_come_with_their_channels_innermost() -> None:
    data = Tensors(torch.rand(8, 3, 5, 5), torch.arange(8))
    wanted = shares(Order(0, 8, 8))
    for channels_last in (False, True):
        loader = Loader(data, device=CPU, channels_last=channels_last)
        for batch in loader(iter(wanted)):
            assert batch.inputs.is_contiguous(memory_format=torch.channels_last) is channels_last
            assert torch.equal(batch.inputs, data.inputs[batch.targets])


class Sentences:
    """Samples that are not pairs: tensors in a dict and a tuple, a number and a word, of any length."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            raise OSError("cannot be read")
        words = torch.arange(index + 1)
        return {"words": words, "both": (torch.ones(2) * index, index), "name": str(index)}


class Padded(Sentences):
    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        words = [sample["words"] for sample in samples]
        both = torch.utils.data.default_collate([sample["both"] for sample in samples])
        padded = torch.nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=-1)
        return {"words": padded, "both": both, "name": [sample["name"] for sample in samples]}


@WORKERS
def test_a_sample_of_any_nesting_is_given_whole_to_model_and_loss(workers: int) -> None:
    loader = Loader(Padded(), device=CPU, workers=workers, dtype=torch.float64)
    one = Samples(torch.tensor([1, 3, 0]), torch.ones(3))
    (batch,) = loader(iter([one]))
    assert batch.inputs is batch.targets
    assert batch.inputs["words"].tolist() == [[0, 1], [0, 1], [0, -1]]
    reals, numbers = batch.inputs["both"]
    assert (reals.dtype, numbers.dtype) == (torch.float64, torch.int64)
    assert numbers.tolist() == [1, 1, 0]
    assert batch.inputs["name"] == ["1", "1", "0"]
    assert batch.weights.tolist() == [1, 0, 1], "the second is a copy of one that can be read"


class Parts:
    """A task whose sets are parts of a part of one data set."""

    def data(self, *, train: bool) -> Any:
        whole: Any = Padded()
        whole.tokens = torch.arange(1, 11)
        part: Subset[Any] = Subset(whole, [9, 8, 1, 0])
        return Subset(part, [2, 3] if train else [0, 1])


@WORKERS
def test_parts_of_a_data_set_have_its_collate_and_its_tokens(workers: int) -> None:
    data: Any = tasks.data(Parts(), Settings(task="own:Parts"), train=True)  # type: ignore[arg-type]
    assert data.tokens.tolist() == [2, 1]
    loader = Loader(data, device=CPU, workers=workers)
    (batch,) = loader(iter([Samples(torch.tensor([0, 1]), torch.ones(2))]))
    assert batch.inputs["words"].tolist() == [[0, 1], [0, -1]]


class Rows(Squares):
    """A data set of Hugging Face's package datasets, as far as the trainer sees it."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]

    def batch(self, batch_size: int, drop_last_batch: bool = False) -> Any:  # noqa: FBT001, FBT002
        raise AssertionError(
            f"called with {batch_size}, {drop_last_batch}: not the batch() of InMemory"
        )


class OfRows(Parts):
    def data(self, **_: bool) -> Any:
        return Rows()


def test_a_data_set_with_a_batch_method_of_its_own_is_read_sample_by_sample() -> None:
    data = tasks.data(OfRows(), Settings(task="own:OfRows"), train=True)  # type: ignore[arg-type]
    (batch,) = Loader(data, device=CPU)(iter([Samples(torch.tensor([3, 0]), torch.ones(2))]))
    assert batch.inputs.tolist() == [[3.0], [0.0]]
    assert batch.targets.tolist() == [9, 0]


@WORKERS
def test_samples_of_unequal_shape_need_a_collate(workers: int) -> None:
    loader = Loader(Sentences(), device=CPU, workers=workers)
    with pytest.raises(Fault) as caught:
        list(loader(iter([Samples(torch.tensor([1, 0]), torch.ones(2))])))
    assert caught.value.code == Exit.CONFIG
    assert str(caught.value).startswith(
        "the samples 1, 0 ... cannot be made into a batch: RuntimeError: "
    )
    assert str(caught.value).endswith("the data, a Sentences, needs a method collate(samples)")
