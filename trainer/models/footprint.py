"""Count the bytes of live tensors and of collectives in a step, with fake tensors or real ones.

with Footprint() as footprint: ...
"""

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook

from trainer.distributed.tensors import leaves, local_part
from trainer.distributed.torch_private import FUSED_SGD, TorchDispatchMode, group_size

# What a rank of n sends for one byte of the larger of input and output, with a ring or in pairs
# (Thakur et al., 2005). An operator's name contains the word, with or without the underscore.
_SENT: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "send": lambda _: 1.0,
}


class Footprint(TorchDispatchMode):
    """Counts within its block.

    `now` is the sum of bytes of live tensors; since the last `reset`, `peak` is the largest, and `sent`
    what this rank sends, by collective. A storage has the size that it had when an operator last took or
    gave it. Those that fully_shard may empty in between are looked at after each: since `reset`, an
    operator that sets no values made them, or they have grown.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, int] = {}
        self._may_shrink: set[int] = set()
        self.now = self.peak = 0
        self.sent: Counter[str] = Counter()
        self._is_reset = False  # while a model is built, nobody asks for the peak

    def reset(self) -> None:
        """Set the counts to zero; live tensors stay known."""
        for key, reference in [*self._live.items()]:
            if (storage := reference()) is not None:
                self._count(key, storage)
        self._may_shrink.clear()
        self.peak, self.sent, self._is_reset = 0, Counter(), True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, with the local tensors
        # This update makes no tensors. To run it would take the memory that fake tensors save.
        out = None if func.overloadpacket is FUSED_SGD else func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func.name().partition("::")[2]
            word = next((w for w in _SENT if w in name or w.replace("_", "") in name), None)
            if word is not None:
                size = max(_largest(args), _largest(out))
                self.sent[word] += round(size * _SENT[word](_group_size(args)))
        empty = "empty" in func.name()
        for made, values in ((True, out), (False, (args, kwargs))):
            for value in leaves(values):
                if isinstance(value, Tensor):
                    self._see(value.untyped_storage(), made=made, empty=empty)
        for key in [*self._may_shrink]:
            if (storage := self._live[key]()) is not None and not self._count(key, storage):
                self._may_shrink.discard(key)
        self.peak = max(self.peak, self.now)
        return out

    def _see(self, storage: torch.UntypedStorage, *, made: bool, empty: bool) -> None:
        """Count a storage that an operator has `made`, or has taken; `empty`: without a value."""
        key = id(storage)  # fake ones have no data_ptr; torch keeps one object per storage
        is_new = key not in self._live
        if is_new and not made:  # the task's own
            return
        if is_new:
            self._live[key] = weakref.ref(storage, lambda _: self._forget(key))
        before = self._sizes.get(key, 0)
        if self._count(key, storage) > before and (empty or not is_new) and self._is_reset:
            self._may_shrink.add(key)

    def _count(self, key: int, storage: torch.UntypedStorage) -> int:
        size = storage.nbytes()
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        return size

    def _forget(self, key: int) -> None:
        del self._live[key]
        self._may_shrink.discard(key)
        self.now -= self._sizes.pop(key)


class Activations:
    """What the forward pass keeps for the backward pass, in bytes: `now`, and at most, `peak`."""

    def __init__(self) -> None:
        self.peak = 0
        self.now = 0
        self._holders: Counter[int] = Counter()

    @contextlib.contextmanager
    def counted(self, module: nn.Module) -> Iterator[None]:
        """Count within the block; the parameters of `module` are not activations."""
        sharded: dict[Tensor, int] = {}  # looked up: to_local costs an operator, for each one kept
        own: set[int] = set()  # of the module that runs: fully_shard gives it others before it runs

        def storage_of(parameter: Tensor) -> int:
            if not isinstance(parameter, DTensor):
                return id(parameter.untyped_storage())
            if parameter not in sharded:
                sharded[parameter] = id(local_part(parameter).untyped_storage())
            return sharded[parameter]

        def keep(tensor: Tensor) -> "_Kept":
            storage = local_part(tensor).untyped_storage()
            if not own:
                own.update(storage_of(parameter) for parameter in module.parameters())
            # Detached: an output that its own node keeps would keep the node, if no backward pass came.
            kept = _Kept(tensor.detach())
            if (key := id(storage)) not in own:
                size = storage.nbytes()
                self._hold(key, size)
                weakref.finalize(kept, self._release, key, size)
            return kept

        runs = register_module_forward_pre_hook(lambda *_: own.clear())
        with runs, torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
            yield

    def _hold(self, key: int, size: int) -> None:
        """Count a storage once, however often it is kept."""
        self._holders[key] += 1
        if self._holders[key] == 1:
            self.now += size
            self.peak = max(self.peak, self.now)

    def _release(self, key: int, size: int) -> None:
        """Take a storage off the count when nothing keeps it any more."""
        self._holders[key] -= 1
        if self._holders[key] == 0:
            self.now -= size


class _Kept:
    """A tensor that autograd keeps; when this object is deleted, the tensor is no longer counted."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _largest(values: object) -> int:
    """Return the bytes of the largest tensor, or list of tensors, among `values`."""
    items = values if isinstance(values, (tuple, list)) else [values]
    sizes = [
        sum(t.numel() * t.element_size() for t in leaves(item) if isinstance(t, Tensor))
        for item in items
    ]
    return max(sizes, default=0)


def _group_size(args: Any) -> int:
    """Return the size of the group among a collective's arguments: an object, or its name."""
    for value in args:
        if isinstance(value, torch.ScriptObject):
            with contextlib.suppress(RuntimeError):  # an operation such as SUM is an object too
                return dist.ProcessGroup.unbox(value).size()
    return group_size(next(value for value in reversed(args) if isinstance(value, str)))
