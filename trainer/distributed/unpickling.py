"""Limits what torch's collectives of objects may unpickle: DCP's plans and results, and no code.

restrict()      # before the process group is created

torch.distributed.checkpoint sends its plans as pickles, which could run any code that a rank of the
group has put there. None of its public settings changes that (torch 2.15).
"""

import builtins
import enum
import pickle
from typing import Any

import torch

from trainer.distributed.torch_private import replace_unpickler

_DCP = "torch.distributed.checkpoint"
# Classes of plain data and functions that make it; none runs code that a pickle provides.
_ALLOWED = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    f"{_DCP}.api": ("CheckpointException",),  # by its class a rank knows that another one failed
    f"{_DCP}.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    f"{_DCP}.planner": (
        "BytesIOWriteData",
        "LoadItemType",
        "LoadPlan",
        "ReadItem",
        "SavePlan",
        "TensorWriteData",
        "WriteItem",
        "WriteItemType",
    ),
    f"{_DCP}.storage": ("WriteResult",),
    "traceback": ("FrameSummary", "StackSummary"),
    "trainer.checkpoint.manifest": ("File",),
    "trainer.config.exits": ("Exit", "Fault"),
}


class _Stranger(Exception):
    """Replaces an exception of a class that is not allowed, such as one of a storage library."""

    def __init__(self, *arguments: Any, **_: Any) -> None:
        super().__init__(*arguments)

    def __setstate__(self, _: Any) -> None:
        """Ignore the state."""


class Restricted(pickle.Unpickler):
    """Makes only plain data and exceptions. Replaces a class that it does not know by an inert one."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        found = getattr({"builtins": builtins, "torch": torch}.get(module), name, None)
        if isinstance(found, torch.dtype):
            return found
        if isinstance(found, type) and issubclass(found, Exception):
            return found
        return type(name, (_Stranger,), {"__module__": module})


def _member(of: type[enum.Enum], name: str) -> enum.Enum:
    """Replace getattr, with which Python 3.11.0 to 3.11.3 pickles a member of an enumeration."""
    if not (isinstance(of, type) and issubclass(of, enum.Enum)):
        raise pickle.UnpicklingError("getattr of what is no enumeration")
    return of[name]


def restrict() -> None:
    """Make torch use `Restricted` to unpickle, in this process."""
    replace_unpickler(Restricted)
