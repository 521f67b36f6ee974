"""Which data is kept on a device, and that its batches are the same there."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from trainer.data.augment import Augmentation
from trainer.data.loader import Loader
from trainer.data.order import Samples
from trainer.data.resident import free_memory, resident
from trainer.data.sets import Tensors
from trainer.tasks.parts.images import Images

CPU = torch.device("cpu")
SMALL = Tensors(torch.arange(12.0).view(6, 2), torch.arange(6))
SIZE = 6 * 2 * 4 + 6 * 8


@dataclass(frozen=True)
class Rows:
    """A user's data."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows[indices], indices


@pytest.mark.parametrize(
    ("data", "free", "why"),
    [
        (SMALL, 4 * SIZE, "is kept on meta: 0.0 MiB; limit: 25% of 0 MiB free"),
        (SMALL, 4 * SIZE - 1, "is read from the host: 0.0 MiB"),
        (Rows(SMALL.inputs), 2**40, "is read from the host: a Rows is not plain tensors"),
        (SMALL, None, None),
    ],
)
def test_what_fits_is_kept_there_and_the_reason_is_printed(
    data: Tensors | Rows, free: int | None, why: str | None
) -> None:
    kept, reason = resident(data, torch.device("meta"), free=free)  # a device that is not the host
    assert (reason or "").startswith(why or "")
    assert (reason is None) == (why is None)
    if why is not None and why.startswith("is kept"):
        assert isinstance(kept, Tensors)
        assert kept.inputs.device.type == kept.targets.device.type == "meta"
    else:
        assert kept is data


def test_the_host_is_no_question() -> None:
    assert free_memory(CPU) is None


def test_batches_are_the_same_wherever_the_data_is() -> None:
    images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)
    data = Images(images, torch.arange(6), Augmentation(6, [0.5] * 3, [0.2] * 3, flip=True))
    kept, _ = resident(data, CPU, free=2**40)
    assert isinstance(kept, Images)  # so it is augmented as before
    wanted = Samples(torch.tensor([4, 0, 4]), torch.ones(3), torch.tensor([7, 8, 9]))
    for one, other in zip(
        *(Loader(source, device=CPU)(iter([wanted])) for source in (data, kept)), strict=True
    ):
        assert torch.equal(one.inputs, other.inputs)
        assert one.targets.tolist() == other.targets.tolist() == [4, 0, 4]
