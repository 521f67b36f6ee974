"""Load samples to the device: by index from memory, or through worker processes that read ahead.

loader = Loader(data, device=device, workers=2)
for batch in loader(shares): ...
"""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from multiprocessing import forkserver, resource_tracker
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from trainer.config.exits import Exit, Fault
from trainer.data.order import Samples, scramble
from trainer.data.sets import (
    Batch,
    Data,
    InMemory,
    MapStyle,
    Nested,
    Transformed,
    UnreadableSample,
)
from trainer.data.stream import Stream
from trainer.distributed.generators import restored, seed
from trainer.distributed.tensors import map_tensors, on_device

Shares = Iterator[Samples]
_Unreadable = dict[int, UnreadableSample]  # by the position in the batch
_TRIES = 100
# Bytes. A socket's path has at most 107; multiprocessing adds 32 for a folder and a file.
_LONGEST_TEMPDIR = 107 - 32


class Loader:
    """Batches of one data set on `device`; floating-point inputs are converted to `dtype`.

    In-memory data is indexed. Other data comes through a DataLoader with `workers` processes, each
    `prefetch` batches ahead. These live as long as the loader, not only for one pass.
    The random numbers of a sample that has no key depend on `base` and its index. Without a base they
    are those that the generators give.
    """

    def __init__(
        self,
        data: Data,
        *,
        device: torch.device,
        workers: int = 0,
        prefetch: int = 2,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        base: int | None = None,
    ) -> None:
        self._data = data
        self._device = device
        self._dtype = dtype
        self._channels_last = channels_last
        self._move = partial(on_device, device=device)
        self._stream_state: dict[str, Any] = {}
        # Checked once: isinstance with a protocol looks up its methods each time.
        self._transform = data.transform_batch if isinstance(data, Transformed) else None
        self._batch = data.batch if isinstance(data, InMemory) else None
        if self._batch is None:
            self._requests = _Requests(base)
            if workers:
                _start_loader_server(type(data).__module__)
            self._workers: DataLoader[Any] = DataLoader(
                _Reader(data),  # type: ignore[arg-type]  # DataLoader calls only __getitems__
                batch_sampler=self._requests,
                collate_fn=_collated_already,
                num_workers=workers,
                prefetch_factor=prefetch if workers else None,
                worker_init_fn=_end_with_rank,
                persistent_workers=workers > 0,
                pin_memory=device.type != "cpu",
                generator=torch.Generator(),  # else it would draw a seed from the training's generator
                # A forked worker can deadlock with NCCL (DDP documentation).
                multiprocessing_context="forkserver" if workers else None,
            )

    def __call__(self, shares: Shares) -> Iterator[Batch]:
        """Yield the micro-batches of `shares`, in their order.

        Only one pass at a time: a new pass ends the previous one.
        """
        for samples, read, unreadable in self._read(shares):
            weights = samples.weights
            if unreadable:
                weights = weights.clone()
                weights[list(unreadable)] = 0
            is_pair = isinstance(read, tuple | list) and len(read) == 2
            inputs = self._inputs(read[0] if is_pair else read, samples)
            yield Batch(
                inputs,
                map_tensors(self._move, read[1]) if is_pair else inputs,
                self._move(weights),
                tuple(
                    replace(one, weight=float(samples.weights[n])) for n, one in unreadable.items()
                ),
                whole=samples.whole and not unreadable,
            )

    def _inputs(self, inputs: Nested, samples: Samples) -> Nested:
        inputs = map_tensors(self._move, inputs)
        if self._transform is not None:
            keys = None if samples.keys is None else samples.keys.to(self._device)
            inputs = self._transform(inputs, keys)
        return map_tensors(self._input, inputs)

    def _input(self, tensor: Tensor) -> Tensor:
        tensor = tensor.to(self._dtype) if tensor.is_floating_point() else tensor
        # Convolutions take the memory format of their input. The weights are not converted, because
        # fully_shard refuses channels_last.
        images = self._channels_last and tensor.dim() == 4
        return tensor.contiguous(memory_format=torch.channels_last) if images else tensor

    def _read(self, shares: Shares) -> Iterator[tuple[Samples, Nested, _Unreadable]]:
        if self._batch is not None:
            for samples in shares:
                yield samples, self._batch(samples.indices), {}
            return
        self._requests.shares, self._requests.pending = shares, []
        for read in self._started():
            if isinstance(read, Fault):
                raise read
            samples, unreadable, state = read
            self._stream_state = state or self._stream_state
            yield self._requests.pending.pop(0), samples, unreadable

    def _started(self) -> Iterator[Any]:
        """Start the workers, or a new pass of theirs. Raises Fault(64) if they cannot get the data."""
        try:
            return iter(self._workers)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise Fault(
                Exit.CONFIG,
                f"the data, a {type(self._data).__name__}, cannot be sent to loader processes: {error}; "
                "it must hold no lambda, lock or open file, or TRAINER_WORKERS must be 0",
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a stream after the last batch; it is the same on all ranks."""
        return self._stream_state or {"position": 0, "state": ""}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the stream at this state."""
        self._stream_state = state
        if state["state"] and isinstance(self._data, Stream):
            self._data.resume(state)


class _Requests:
    """The batch sampler of every pass: yields the indices and keys to read, and keeps their samples."""

    def __init__(self, base: int | None) -> None:
        self._base = base
        self.shares: Shares = iter(())
        self.pending: list[Samples] = []  # requested and not yet read

    def __iter__(self) -> Iterator[list[tuple[int, int | None]]]:
        for samples in self.shares:
            self.pending.append(samples)
            keys = samples.keys
            if keys is None and self._base is not None:
                keys = scramble(samples.indices + self._base)
            listed = [None] * len(samples) if keys is None else keys.tolist()
            yield list(zip(samples.indices.tolist(), listed, strict=True))


class _Reader:
    """Reads a whole batch in a worker process.

    The random numbers of a sample, by torch, NumPy or Python, depend only on its key, not on the
    worker.
    """

    def __init__(self, data: MapStyle) -> None:
        self._data = data

    def __getitems__(
        self, wanted: list[tuple[int, int | None]]
    ) -> tuple[Any, _Unreadable, dict[str, Any]] | Fault:
        keyed = wanted[0][1] is not None
        try:
            with restored() if keyed else contextlib.nullcontext():
                return self._read(wanted)
        except Fault as fault:
            return (
                fault  # raised in a worker, it would arrive as a RuntimeError without its exit code
            )

    def _read(
        self, wanted: list[tuple[int, int | None]]
    ) -> tuple[Any, _Unreadable, dict[str, Any]]:
        samples: list[Any] = []
        unreadable: _Unreadable = {}
        for index, key in wanted:
            try:
                if key is not None:
                    seed(key)
                samples.append(self._data[index])
            except (Fault, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001  # a data set may raise anything
                reason = " ".join(f"{type(error).__name__}: {error}".split())  # one line
                unreadable[len(samples)] = UnreadableSample(index, self._file(index), reason)
                samples.append(None)
        if unreadable:
            good = [sample for number, sample in enumerate(samples) if number not in unreadable]
            replacement = good[0] if good else self._sample_near(wanted[0][0], unreadable[0].reason)
            for number in unreadable:
                samples[number] = replacement
        try:
            batch = getattr(self._data, "collate", default_collate)(samples)
        except Exception as error:  # noqa: BLE001  # a user's collate may raise anything
            indices = ", ".join(str(index) for index, _ in wanted[:3])
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise Fault(
                Exit.CONFIG,
                f"the samples {indices} ... cannot be made into a batch: {reason}; for unequal "
                f"shapes the data, a {type(self._data).__name__}, needs a method collate(samples)",
            ) from None
        stream = self._data if isinstance(self._data, Stream) else None
        return batch, unreadable, stream.state() if stream and stream.has_state else {}

    def _sample_near(self, index: int, reason: str) -> Any:
        """Return a readable sample after `index`, which is unreadable; only its shape is needed."""
        tries = min(_TRIES, len(self._data))
        for distance in range(1, tries):
            with contextlib.suppress(Exception):
                return self._data[(index + distance) % len(self._data)]
        first = f"{index} ({file})" if (file := self._file(index)) else index
        raise Fault(Exit.DATA, f"none of {tries} samples from {first} on can be read: {reason}")

    def _file(self, index: int) -> str:
        """Return the file of the sample, if the data has `samples` as torchvision's ImageFolder has."""
        try:
            return str(self._data.samples[index][0])  # type: ignore[attr-defined]
        except (AttributeError, IndexError, KeyError, TypeError):
            return ""


def _collated_already(batch: Any) -> Any:
    return batch


def _end_with_rank(_: int) -> None:
    """Make a worker end when its rank ends.

    torch checks only the worker's parent, which is the fork server, and the server lives as long as a
    worker. Without this, both would outlive a rank that was killed.
    """

    def wait() -> None:
        if rank := multiprocessing.parent_process():
            rank.join()
        os._exit(1)

    threading.Thread(target=wait, name="rank", daemon=True).start()


@cache  # starts it once
def _start_loader_server(module: str) -> None:
    """Start the process that forks the loader's workers, with SIGTERM and SIGINT blocked.

    Child processes inherit blocked signals. To stop a run, torchrun signals the whole process group, but
    the run still needs its workers to finish the step and save.
    """
    # Torch and the data's module are imported once, in the server, not by every worker.
    preloaded = ["trainer.data.loader_server", module]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded)
    atexit.register(_kill_remaining_workers)
    resource_tracker.ensure_running()  # before blocking: its start unblocks these signals
    folder = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_TEMPDIR:
        tempfile.tempdir = "/tmp"  # noqa: S108  # as Python does from 3.14 on (cpython 132124)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = folder
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_remaining_workers() -> None:
    """Kill workers that still run after an error, before multiprocessing stops them at exit.

    multiprocessing sends SIGTERM, which the workers block, and waits without a timeout.
    """
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
