"""Write a checkpoint, all ranks together: torch.distributed.checkpoint (DCP) plans, this module writes.

DCP decides which rank writes which part, and gathers the failures of all ranks. DCP's own storage is not
used, because its files are pickles.
"""

import contextlib
import errno
import io
import itertools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from trainer.checkpoint.find import Found
from trainer.checkpoint.manifest import (
    FORMAT,
    MANIFEST_FILE,
    Chunk,
    File,
    Manifest,
    Progress,
    Tensor,
    decode,
    encode,
    key_from,
    keyed,
    name_of,
)
from trainer.checkpoint.retention import Keep, remove_old
from trainer.checkpoint.staging import Copies
from trainer.checkpoint.state import State
from trainer.checkpoint.store import Store, difference


@dataclass(frozen=True)
class Label:
    """The part of the manifest that does not come from the state."""

    progress: Progress
    mode: str
    world_size: int
    metric: float | None = None


class Refused(Exception):
    """The storage refused a checkpoint: it is full, failing, or gone. Another attempt may succeed."""


def write(
    state: State,
    label: Label,
    store: Store,
    keep: Keep,
    *,
    group: dist.ProcessGroup | None,
    copies: Copies | None = None,
) -> int:
    """Write `state` as the checkpoint of its step and return its bytes (0 on other ranks than 0).

    The values of tensors are taken from `copies`, if given. All ranks of `group` call it together and
    raise the same: Refused when storage failed, RuntimeError for any other failure. A failed attempt
    leaves no files.
    """
    writer = _Writer(store, label, keep)
    try:
        dcp.save(
            state,
            storage_writer=writer,
            planner=_Planner(copies),
            process_group=group,
            no_dist=group is None,
        )
    except CheckpointException as error:
        writer.discard()
        raise _reason(error, store.where(name_of(label.progress.step))) from error
    return writer.size


def add_metric(found: Found, metric: float) -> None:
    """Write the metric of a later evaluation into a complete checkpoint. Raises OSError."""
    text = encode(found.manifest.model_copy(update={"metric": metric}))
    found.store.replace(found.name, MANIFEST_FILE, text)


def _reason(error: CheckpointException, where: str) -> Exception:
    """Return the error to raise: Refused if all failures are failures of storage."""
    failures = {rank: failure[0] for rank, failure in error.failures.items()}
    rank, first = min(failures.items())
    text = f"checkpoint {where}: cannot be written: rank {rank}: "
    for failure in failures.values():
        if not isinstance(failure, OSError):
            return RuntimeError(f"{text}{type(failure).__name__}: {failure}")
    return Refused(text + (getattr(first, "strerror", None) or str(first)))


class _Planner(DefaultSavePlanner):
    """DCP's own planner, except that values that are not tensors become JSON instead of pickles."""

    def __init__(self, copies: Copies | None) -> None:
        # Save rank 0's copy of a replicated tensor. DDP uses rank 0's running statistics, so a run that
        # resumed with another rank's statistics would give other results.
        super().__init__(dedup_save_to_lowest_rank=True)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Any:
        path = self.mappings[index.fqn]
        if self._copies is not None and path in self._copies:
            return self._copies[path]
        return super().lookup_object(index)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002  # torch's name
        if write_item.type != WriteItemType.BYTE_IO:
            return object
        try:
            return io.BytesIO(json.dumps(object).encode())
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{write_item.index.fqn} is a {type(object).__name__}; a checkpoint holds tensors, "
                "numbers, strings and lists and dicts of them"
            ) from error


class _Writer(StorageWriter):
    """DCP's storage: one data file per rank; rank 0 writes the manifest and commits."""

    def __init__(self, store: Store, label: Label, keep: Keep) -> None:
        self._store, self._label, self._keep = store, label, keep
        self._name = name_of(label.progress.step)
        self._folder: str | None = None
        self.size = 0

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        return True

    def set_up_storage_writer(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._folder = self._store.begin(self._name)
        needed = sum(item.tensor_storage_size() or 0 for plan in plans for item in plan.items)
        free = self._store.free()
        if free is not None and free < needed:
            raise OSError(errno.ENOSPC, f"{needed:,} bytes needed, {free:,} free")
        return [
            replace(plan, storage_data=(self._folder, f"rank-{rank:05d}.data"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors, results = [], []
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                value = cast("io.BytesIO", planner.resolve_data(item)).getvalue()
                results.append(WriteResult(item.index, len(value), json.loads(value)))
            else:
                tensors.append(item)
        if tensors:
            folder, name = plan.storage_data
            results += self._write_tensors(folder, name, tensors, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _write_tensors(
        self, folder: str, name: str, items: Sequence[WriteItem], planner: SavePlanner
    ) -> list[WriteResult]:
        results, checksum, start = [], 0, 0
        signature = keyed(key) if (key := key_from()) else None
        with self._store.create(folder, name) as file:
            for item in items:
                tensor = cast("torch.Tensor", planner.resolve_data(item)).detach().cpu()
                flat = tensor.contiguous().reshape(-1)
                data = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
                file.write(data)
                checksum = zlib.crc32(data, checksum)
                if signature:
                    signature.update(data)
                results.append(WriteResult(item.index, data.nbytes, (name, start)))
                start += data.nbytes
        signed = signature.hexdigest() if signature else ""
        written = File(size=start, crc32=checksum, signature=signed)
        if reason := difference(self._store, folder, name, written):
            raise OSError(errno.EIO, f"{reason}, just after it was written")
        # DCP gathers results of tensors, not of files: the file's size and checksum are in the first.
        first = results[0]
        results[0] = replace(first, storage_data=(*first.storage_data, written))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        manifest = _manifest(self._label, metadata, [*itertools.chain(*results)])
        text = encode(manifest)
        decode(text, self._name)
        folder = cast("str", self._folder)
        with self._store.create(folder, MANIFEST_FILE) as file:
            file.write(text)
        self._store.commit(folder, self._name)
        self._folder = None
        self.size = manifest.size + len(text)
        with contextlib.suppress(OSError):  # the next save tries again
            remove_old(self._store, self._keep, newest=self._label.progress.step)

    def discard(self) -> None:
        """Remove the folder of a failed attempt, on the rank that created it."""
        if self._folder is not None:
            self._store.discard(self._folder)


def _manifest(label: Label, metadata: Metadata, results: Sequence[WriteResult]) -> Manifest:
    files: dict[str, File] = {}
    values: dict[str, Any] = {}
    places: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}
    for result in results:
        key = result.index.fqn
        stored = metadata.state_dict_metadata[key]
        if not isinstance(stored, TensorStorageMetadata):
            values[key] = result.storage_data
            continue
        name, start, *written = result.storage_data
        if written:
            files[name] = written[0]
        places[key, tuple(result.index.offset or (0,) * len(stored.size))] = name, start
    tensors = {}
    for key, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, TensorStorageMetadata):
            chunks = []
            for chunk in stored.chunks:
                offsets = tuple(chunk.offsets)
                file, start = places[key, offsets]
                sizes = tuple(chunk.sizes)
                chunks.append(Chunk(offsets=offsets, sizes=sizes, file=file, start=start))
            dtype = str(stored.properties.dtype).removeprefix("torch.")
            tensors[key] = Tensor(dtype=dtype, shape=tuple(stored.size), chunks=tuple(chunks))
    return Manifest(
        format=FORMAT,
        progress=label.progress,
        metric=label.metric,
        torch=torch.__version__,
        mode=label.mode,
        world_size=label.world_size,
        files=files,
        tensors=tensors,
        values=values,
    )
