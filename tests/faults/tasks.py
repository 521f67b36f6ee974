"""Tasks with a fault; environment variables say which and when."""

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from tests.parity.own_tasks import ReplacesABuffer
from trainer.checkpoint import saver
from trainer.config.settings import Settings
from trainer.data.order import Order
from trainer.data.sets import Tensors
from trainer.tasks import synthetic


def planted(**fault: str) -> Callable[[], None]:
    """Return a function that sets the variables of the tasks here in a rank of `run_ranks`."""
    return partial(_plant, fault)


def _plant(fault: dict[str, str]) -> None:
    os.environ |= fault


class Numberless(synthetic.Task):
    """On rank 1, the calls of `loss` named in NUMBERLESS have a non-finite gradient or loss."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._calls = 0
        self._kind, _, calls = os.environ["NUMBERLESS"].partition(":")
        self._wrong = {int(call) for call in calls.split(",")}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._calls += torch.is_grad_enabled()
        losses = super().loss(outputs, targets)
        if os.environ.get("RANK", "1") != "1" or self._calls not in self._wrong:
            return losses
        if self._kind == "gradient":  # the derivative of the square root at 0 is infinite
            return losses + (0 * outputs.sum()).sqrt()
        return losses + torch.inf


class Poisoned(synthetic.Task):
    """The samples of the steps named in POISONED are nan (with 32 samples and seed 0)."""

    def data(self, *, train: bool) -> Tensors:
        whole = super().data(train=train)
        inputs = whole.inputs.clone()
        if train:
            order = Order(seed=0, length=len(whole), end=len(whole))
            for step in os.environ["POISONED"].split(","):
                inputs[order.take(32 * (int(step) - 1), 32).indices] = torch.nan
        return replace(whole, inputs=inputs)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(64), super().model())


class PoisonedMean(ReplacesABuffer, Poisoned):
    """With running statistics that each forward pass replaces by another tensor."""


class Wide(synthetic.Task):
    """One sample at a time, each of 8 TiB that are never written."""

    def data(self, *, train: bool) -> list[tuple[Tensor, int]]:  # type: ignore[override]
        return [(torch.zeros(1).expand(2**41), int(train))]


class Slow(synthetic.Task):
    """The `loss` of a training step takes SLOW milliseconds, on rank 1 SLOW_RANK_1 milliseconds."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mine = os.environ.get("SLOW_RANK_1" if os.environ["RANK"] == "1" else "SLOW", "0")
        time.sleep(int(mine) / 1000 if torch.is_grad_enabled() else 0)
        return super().loss(outputs, targets)


class Lingering(synthetic.Task):
    """Raises in the second step on rank 1; its process then takes a minute to end."""

    steps = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.steps += torch.is_grad_enabled()
        if os.environ["RANK"] == "1" and self.steps > 1:
            atexit.register(time.sleep, 60)
            raise ValueError("enough of it")
        return super().loss(outputs, targets)


class Stuck(synthetic.Task):
    """The fourth step's `loss` on rank STUCK never returns; with HOW=killed its process ends there.

    With HOW=building the model is never built; with HOW=loading this object is never created.
    """

    calls = 0

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if os.environ["RANK"] == os.environ["STUCK"] and os.environ.get("HOW") == "loading":
            time.sleep(3600)

    def model(self) -> nn.Module:
        if os.environ["RANK"] == os.environ["STUCK"] and os.environ.get("HOW") == "building":
            time.sleep(3600)
        return super().model()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        if os.environ["RANK"] == os.environ["STUCK"] and self.calls == 4:
            if os.environ.get("HOW") == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return super().loss(outputs, targets)


class Filling(synthetic.Task):
    """Fills the disk of FILLED at the sixth step. At the tenth only a checkpoint's data fit.

    At the fourteenth there is room again.
    """

    calls = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        is_first = os.environ.get("RANK", "0") == "0"
        if is_first and torch.is_grad_enabled() and self.calls in (6, 10, 14):
            for thread in threading.enumerate():
                if thread.name == "checkpoint":
                    thread.join()
            self._fill(Path(os.environ["FILLED"]))
        return super().loss(outputs, targets)

    def _fill(self, disk: Path) -> None:
        ballast, page = disk / "ballast", 4096
        ballast.unlink(missing_ok=True)
        if self.calls == 14:
            return
        data = sum(file.stat().st_size for file in disk.glob("run/checkpoints/*/*.data"))
        room = -(-data // page) if self.calls == 10 else 0
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(page))
        os.truncate(ballast, ballast.stat().st_size - room * page)


class Parted(synthetic.Task):
    """Ranks lose their connections in the first computation, but their nodes stay connected."""

    def loss(self, *_: Tensor) -> Tensor:
        raise dist.DistNetworkError(f"no way from rank {os.environ['RANK']}")


class Spared(nn.Module):
    """Has a layer that the forward pass does not use."""

    def __init__(self, used: nn.Module) -> None:
        super().__init__()
        self.used, self.spare = used, nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Any:
        return self.used(inputs)


class Unused(synthetic.Task):
    def model(self) -> nn.Module:
        return Spared(super().model())


class Greedy(synthetic.Task):
    """The third step's `loss` on rank 1 asks for too much memory, in the way that GREEDY names."""

    calls = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        if os.environ.get("RANK", "1") == "1" and self.calls == 3:
            if os.environ["GREEDY"] == "torch":
                torch.empty(2**50, device=outputs.device)
            elif os.environ["GREEDY"] == "python":
                bytearray(2**50)
            else:  # uses memory piece by piece until the kernel kills it
                kept = []
                while True:
                    kept.append(bytearray(os.urandom(2**20)) * 8)
        return super().loss(outputs, targets)


class Pictures:
    """Small pictures in folders by class, below TRAINER_DATA: train/ and test/."""

    metric = "accuracy"

    def __init__(self, settings: Settings) -> None:
        self._folder = str(settings.data)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))

    def data(self, *, train: bool) -> ImageFolder:
        return ImageFolder(f"{self._folder}/{'train' if train else 'test'}", ToTensor())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(dim=1) == targets).float()


class Disturbed(synthetic.Task):
    """Rank 0 sends SIGTERM to its launcher, twice, in the middle of MOMENT.

    That is a step, an evaluation or a checkpoint; without MOMENT nothing happens.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._left = 7  # calls until the signal
        if os.environ.get("MOMENT") == "checkpoint":
            self._left = 1
            write = saver.write

            def written(*arguments: Any, **named: Any) -> int:
                self._disturb("checkpoint")
                return write(*arguments, **named)

            saver.write = written

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._disturb("step" if torch.is_grad_enabled() else "evaluation")
        return super().loss(outputs, targets)

    def _disturb(self, moment: str) -> None:
        if moment == os.environ.get("MOMENT") and os.environ["RANK"] == "0":
            self._left -= 1
            for _ in range(2 * (self._left == 0)):
                os.kill(int(os.environ["MUSTER_LAUNCHER"]), signal.SIGTERM)
                time.sleep(0.2)


class Exiting(synthetic.Task):
    """Calls sys.exit() in a later step."""

    calls = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 9:
            raise SystemExit(3)
        return super().loss(outputs, targets)
