"""Read CIFAR-10's files, which are pickles, without running code in them or trusting what they say.

images, labels = read(Path("cifar-10-batches-py/test_batch"))
"""

import pickle
import pickletools
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.regular import open_regular

_MOST_BYTES = 64 << 20  # the files have 31 MB
_MOST_REMEMBERED = 1 << 20  # the unpickler allocates its memo up to the highest index
_PIXELS = 3 * 32 * 32


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Return images, shape (n, 3, 32, 32), uint8, and labels 0 to 9. Raises Fault(65)."""
    try:
        with open_regular(path, at_most=_MOST_BYTES) as file:
            _check_memory(file)
            batch = _Inert(file, encoding="bytes").load()
        images = torch.from_numpy(batch[b"data"].array()).view(-1, 3, 32, 32)
        labels = torch.tensor(batch[b"labels"], dtype=torch.long)
    except OSError as error:
        raise Fault(Exit.DATA, f"{path}: cannot be read: {error.strerror or error}") from error
    # a damaged pickle may raise anything
    except Exception as error:
        reason = " ".join(str(error).split())
        raise Fault(
            Exit.DATA, f"{path}: cannot be read: {reason}; delete it and download it again"
        ) from error
    right = labels.ndim == 1 and len(images) == len(labels) > 0
    if not right or not 0 <= labels.min() <= labels.max() <= 9:
        raise Fault(
            Exit.DATA,
            f"{path}: {len(images)} images, labels of shape {tuple(labels.shape)}; wanted: a label, "
            "0 to 9, for each image",
        )
    return images, labels


def _check_memory(file: BinaryIO) -> None:
    """Raise ValueError if the unpickler would allocate a larger memo than such a file needs."""
    for code, argument, _ in pickletools.genops(file):
        if code.name in ("LONG_BINPUT", "PUT") and int(argument or 0) > _MOST_REMEMBERED:
            raise ValueError(f"its memo index {argument} is too large")
    file.seek(0)


class _Array:
    """Takes the place of numpy's array, whose own code would trust the types that the file states."""

    shape: Any = None
    elements: Any = None

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, self.by_columns, self.elements = state

    def array(self) -> np.ndarray[Any, Any]:
        """Return the bytes as an array, shape (n, 3072), uint8."""
        known = isinstance(self.dtype, _Type) and self.dtype.name in ("u1", b"u1")
        if not known or self.by_columns or type(self.elements) is not bytes:
            raise ValueError("its images are not bytes, row by row")
        if self.shape != (len(self.elements) // _PIXELS, _PIXELS):
            raise ValueError(f"its images have the shape {self.shape!r}, not (n, {_PIXELS})")
        if len(self.elements) != self.shape[0] * _PIXELS:
            raise ValueError(f"its images have {len(self.elements)} bytes")
        return np.frombuffer(bytearray(self.elements), dtype=np.uint8)


class _Type:
    """Takes the place of numpy's dtype."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name

    def __setstate__(self, _: Any) -> None:
        pass


class _Inert(pickle.Unpickler):
    """Returns our own classes for the three names that such a file has, and refuses any other name."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _reconstruct
        if module == "numpy" and name == "ndarray":
            return _Array
        if module == "numpy" and name == "dtype":
            return _Type
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _reconstruct(*_: Any) -> _Array:
    return _Array()
