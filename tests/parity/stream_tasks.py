"""The synthetic task on 400 samples: as a map-style set, and as streams in the same order."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from trainer.config.settings import Settings
from trainer.data.order import Order
from trainer.data.sets import Tensors
from trainer.tasks import synthetic

SAMPLES = 400
SEED = 0  # of the runs


class Mapped(synthetic.Task):
    def data(self, *, train: bool) -> Any:
        whole = super().data(train=train)
        return Tensors(whole.inputs[:SAMPLES], whole.targets[:SAMPLES])


class Plain(IterableDataset[Any]):
    """Yields the samples of an epoch in the trainer's order of it, and the test set in its own."""

    def __init__(self, data: Any, *, shuffled: bool) -> None:
        self.data, self.shuffled, self.epoch = data, shuffled, 0

    def __len__(self) -> int:
        return SAMPLES

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def indices(self) -> list[int]:
        order = Order(SEED, SAMPLES, SAMPLES * (self.epoch + 1))
        found: list[int] = order.take(SAMPLES * self.epoch, SAMPLES).indices.tolist()
        return found if self.shuffled else list(range(SAMPLES))

    def die(self, place: int) -> None:
        """Kill this process, a rank, where the test wants it."""
        if os.environ.get("STREAM_DIES") == f"{self.epoch}:{place}":
            os.kill(os.getpid(), signal.SIGKILL)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for place, index in enumerate(self.indices()):
            self.die(place)
            yield self.data.inputs[index], self.data.targets[index]


class WithState(Plain):
    """One that can continue; `begun`, and the lines of `file`, are the places at which it did."""

    def __init__(self, data: Any, *, shuffled: bool, file: Path | None = None) -> None:
        super().__init__(data, shuffled=shuffled)
        self.file = file
        self.at, self.begun = 0, list[int]()

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.begun.append(self.at)
        if self.file:
            with self.file.open("a") as file:
                file.write(f"{self.epoch * SAMPLES + self.at}\n")
        for index in self.indices()[self.at :]:
            self.die(self.at)
            self.at += 1
            yield self.data.inputs[index], self.data.targets[index]


class PlainTask(Mapped):
    def data(self, *, train: bool) -> Any:
        return Plain(super().data(train=train), shuffled=train)


class StateTask(Mapped):
    """With `begun` in the run's folder: where its training stream began, in samples of the run."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._begun = settings.run_folder / "begun"

    def data(self, *, train: bool) -> Any:
        file = self._begun if train else None
        return WithState(super().data(train=train), shuffled=train, file=file)
