"""Load a checkpoint, all ranks together: torch.distributed.checkpoint (DCP) plans, this module reads.

DCP decides which slices of which chunks a rank needs, so any mode and world size can load a checkpoint.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, BinaryIO, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future
from torch.optim import Optimizer

from trainer.checkpoint.find import Found
from trainer.checkpoint.manifest import DTYPES
from trainer.checkpoint.parts import read_part
from trainer.checkpoint.state import State, capture, restore
from trainer.config.exits import Exit, Fault
from trainer.distributed.messages import from_all
from trainer.distributed.runtime import Runtime, as_fault

log = logging.getLogger("trainer")


def load(
    found: Found,
    module: nn.Module,
    optimizer: Optimizer,
    extra: Mapping[str, Stateful],
    *,
    runtime: Runtime,
    optimizer_state: bool = True,
    other_settings: bool = False,
) -> list[str]:
    """Load a checkpoint into the run. Raises Fault(65) when it does not fit the model.

    Returns the names of the parts of `extra` that are not in the checkpoint. They keep their initial
    state, and a message says so. If `optimizer_state` is false, so does the optimiser; with
    `other_settings`, which may train more parameters, so does each part of the optimiser's state; else
    that of a parameter without any state there, which had no gradient yet.
    """
    initial = dict(optimizer.state)  # `capture` fills an empty one with the state after a step
    state = capture(module, optimizer, extra)
    saved = {*found.manifest.tensors, *found.manifest.values}
    kept: State = {}
    if not optimizer_state:
        kept = dict(state["optimizer"])
        if runtime.is_main:
            log.warning("checkpoint %s has another optimiser's state: not loaded", found.where)
    else:
        lacked = [key for key in state["optimizer"] if f"optimizer.{key}" not in saved]
        kept = {
            key: state["optimizer"][key]
            for key in lacked
            if other_settings or not _has_others(f"optimizer.{key}", saved)
        }
        _warn_of_lacking(found, [*kept], runtime)
    fresh = _take_out(kept, state, optimizer)
    lacking = [name for name in extra if not any(key.startswith(f"extra.{name}.") for key in saved)]
    for name in lacking:
        del state["extra"][name]
        if runtime.is_main:
            log.warning("checkpoint %s has no %s: it starts here", found.where, name)
    try:
        dcp.load(
            state,
            storage_reader=_Reader(found),
            planner=_Planner(),
            process_group=runtime.control,
            no_dist=runtime.control is None,
        )
        state["optimizer"].update(kept)
        restore(state, module, optimizer, extra)
    except (CheckpointException, RuntimeError, ValueError, KeyError, TypeError) as error:
        if (fault := as_fault(error)).code != Exit.CODE:  # a lost peer, a broken device
            raise fault from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise Fault(
            Exit.DATA, f"checkpoint {found.where}: does not fit this run: {reason}"
        ) from error
    for parameter in fresh:
        optimizer.state[parameter] = initial.get(parameter, {})
    return lacking


def _has_others(key: str, saved: Collection[str]) -> bool:
    """Return whether anything else of the same parameter was saved."""
    of_parameter = key.rpartition(".")[0] + "."
    return any(one.startswith(of_parameter) for one in saved)


def _warn_of_lacking(found: Found, keys: list[str], runtime: Runtime) -> None:
    """Log how many values of the optimiser's state, on any rank, are not in the checkpoint."""
    lacking = {key for of_rank in from_all(keys, runtime, list[str]) for key in of_rank}
    states = sorted(key for key in lacking if key.startswith("state."))
    if states and runtime.is_main:
        log.warning(
            "checkpoint %s lacks %s values of the optimiser's state, such as %s: their initial state "
            "is used",
            found.where,
            len(states),
            states[0].removeprefix("state."),
        )


def _take_out(kept: State, state: State, optimizer: Optimizer) -> list[Tensor]:
    """Remove `kept` from the state that is loaded; return the parameters whose state it has."""
    for key in kept:
        del state["optimizer"][key]
    tensors = {id(value) for value in kept.values() if isinstance(value, Tensor)}
    return [
        parameter
        for parameter, values in optimizer.state.items()
        if tensors & {id(value) for value in values.values()}
    ]


class _Planner(DefaultLoadPlanner):
    """DCP's own planner, except that values that are not tensors come from JSON."""

    def set_value(self, key: str, value: Any) -> None:
        """Replace the value of `key` in the nested state; a tuple stays a tuple."""
        *path, last = self.mappings[key]
        place: Any = self.original_state_dict
        for part in path:
            place = place[part]
        place[last] = tuple(value) if isinstance(place[last], tuple) else value


class _Reader(StorageReader):
    """DCP's storage: describes the checkpoint, and reads the slices that DCP plans."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._chunks = {
            (key, chunk.offsets): (tensor, chunk)
            for key, tensor in found.manifest.tensors.items()
            for chunk in tensor.chunks
        }

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        return True

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        manifest = self._found.manifest
        described: dict[str, Any] = {key: BytesStorageMetadata() for key in manifest.values}
        for key, tensor in manifest.tensors.items():
            described[key] = TensorStorageMetadata(
                TensorProperties(dtype=DTYPES[tensor.dtype]),
                torch.Size(tensor.shape),
                [
                    ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                    for chunk in tensor.chunks
                ],
            )
        return Metadata(described)

    def set_up_storage_reader(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        read = {item.storage_index.fqn for plan in plans for item in plan.items}
        tensors = self._found.manifest.tensors  # DCP reads none without elements
        unread = [key for key, one in tensors.items() if key not in read and 0 not in one.shape]
        if left := [key for key in unread if key.startswith("model.")]:
            raise ValueError(f"it has {len(left)} tensors that the model lacks, such as {left[0]}")
        has_optimizer = any(key.startswith("optimizer.") for key in read)
        if has_optimizer and (left := [key for key in unread if key.startswith("optimizer.")]):
            log.warning(
                "checkpoint %s: %s tensors of the optimiser, such as %s, are not loaded: this optimiser "
                "has none of that name in its first step",
                self._found.where,
                len(left),
                left[0].removeprefix("optimizer."),
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            for item in plan.items:
                index = item.storage_index
                if item.type == LoadItemType.BYTE_IO:
                    cast("_Planner", planner).set_value(
                        index.fqn, self._found.manifest.values[index.fqn]
                    )
                    continue
                tensor, chunk = self._chunks[index.fqn, tuple(index.offset or ())]
                if chunk.file not in files:
                    opened = self._found.store.open(self._found.name, chunk.file)
                    files[chunk.file] = stack.enter_context(opened)
                target = planner.resolve_tensor(item).detach()
                offsets = item.storage_offsets
                read_part(files[chunk.file], target, stored=tensor, chunk=chunk, offsets=offsets)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done
