"""An `IterableDataset` with a length, read by position: every reader iterates and keeps its own share.

Each rank and each loader's worker goes through the whole stream and takes the samples of its own
batches. So the order is the dataset's, on any number of ranks and workers, and a resumed run continues
with the next sample.

    data = Stream(dataset, seed=settings.seed)
    sample = data[position]     # the sample position % len(data) of the epoch position // len(data)
"""

import base64
import binascii
import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from trainer.config.exits import Exit, Fault
from trainer.data.order import PADDING, mix
from trainer.distributed.generators import restored, seed
from trainer.distributed.torch_private import forget_loader_worker

# Methods that the loader looks for in a data set.
_PASSED_ON = ("collate", "transform_batch")


class Stream:
    """A stream of `len(dataset)` samples per epoch, which is read forward, by position.

    The random numbers of a sample, by torch, NumPy or Python, depend only on (seed, epoch, sample). If
    the dataset has `set_epoch(epoch)`, it is called before each epoch. A dataset with `state_dict()` and
    `load_state_dict()` resumes at its state; any other is read again from the start of the epoch.
    """

    def __init__(self, dataset: IterableDataset[Any], *, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        self._iterator: Iterator[Any] | None = None
        self._epoch, self._next = 0, 0
        # The last samples by position: a batch that is filled up repeats them.
        self._recent: dict[int, Any] = {}
        self.has_state = all(
            callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict")
        )
        self._first = copy.deepcopy(dataset.state_dict()) if self.has_state else None  # type: ignore[attr-defined]
        self._resumed: tuple[int, Any] | None = None
        for name in _PASSED_ON:
            if hasattr(dataset, name):
                setattr(self, name, getattr(dataset, name))

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]  # checked by check_data

    def __getitem__(self, position: int) -> Any:
        """Return a sample; samples between the previous one and this one are read and dropped.

        Raises Fault(65) when the stream ends early or raises.
        """
        if position not in self._recent:
            epoch, index = divmod(position, len(self))
            if self._iterator is None or epoch != self._epoch or index < self._next:
                self._begin(epoch, index)
            while self._next <= index:
                self._read()
        return self._recent[position]

    def state(self) -> dict[str, Any]:
        """Return the position of the next sample, and the dataset's state at that position as text."""
        file = io.BytesIO()
        torch.save(self._dataset.state_dict(), file)  # type: ignore[attr-defined]
        position = self._epoch * len(self) + self._next
        return {"position": position, "state": base64.b64encode(file.getvalue()).decode()}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue at a state from `state()`, as soon as a sample at or after its position is read."""
        try:
            file = io.BytesIO(base64.b64decode(state["state"]))
            self._resumed = state["position"], torch.load(file, weights_only=True)
        except (binascii.Error, pickle.UnpicklingError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise Fault(
                Exit.DATA,
                f"{self._name()}: its saved state cannot be read: {reason}; state_dict() may hold "
                "only tensors, numbers, texts, lists and dicts",
            ) from error
        self._iterator = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {
            "_iterator": None,
            "_recent": {},
        }  # for a worker, which starts its own iteration

    def _begin(self, epoch: int, index: int) -> None:
        """Start an epoch, at the resumed position if that is in the epoch and not after `index`."""
        forget_loader_worker()  # a dataset that splits itself by worker would split twice
        self._epoch, self._next = epoch, 0
        state, position = self._first, (self._resumed or (-1, None))[0]
        if self._resumed and epoch * len(self) < position <= epoch * len(self) + index:
            self._next, state = position - epoch * len(self), self._resumed[1]
        try:
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            if self.has_state:
                self._dataset.load_state_dict(copy.deepcopy(state))  # type: ignore[attr-defined]
            with restored():
                seed(mix(self._seed, epoch, "stream"))
                self._iterator = iter(self._dataset)
        except Exception as error:
            raise self._fault(error) from error

    def _read(self) -> None:
        position = self._epoch * len(self) + self._next
        try:
            with restored():
                seed(mix(self._seed, self._epoch, "stream", self._next))
                assert self._iterator is not None  # noqa: S101  # _begin made it
                self._recent[position] = next(self._iterator)
        except StopIteration:
            raise Fault(
                Exit.DATA,
                f"{self._name()}: epoch {self._epoch} ended after {self._next} samples, but its len() "
                f"is {len(self)}; the dataset must not split itself by rank or worker: the trainer does",
            ) from None
        except Exception as error:
            raise self._fault(error) from error
        self._recent.pop(position - PADDING, None)
        self._next += 1

    def _fault(self, error: Exception) -> Fault:
        if isinstance(error, Fault):
            return error
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Fault(
            Exit.DATA,
            f"{self._name()}: raised {what} at sample {self._next} of epoch {self._epoch}; a stream "
            "that has raised cannot continue",
        )

    def _name(self) -> str:
        return f"the stream {type(self._dataset).__name__}"
