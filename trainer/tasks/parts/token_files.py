"""Files of tokens, mapped into memory. A sample is a window of a file.

A folder holds train.bin and val.bin: tokens one after the other, without a header, as nanoGPT's scripts
write them. They are uint16 unless meta.json in the folder says otherwise:

    {"dtype": "uint32", "vocabulary": 128256}

    files = open_files(Path("owt"), length=1024)
    inputs, targets = files.train.batch(torch.tensor([0, 7]))
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.tasks.parts.text import library_source

_GPT2_VOCABULARY = 50_304  # 50,257 rounded up to a multiple of 64, which GPUs prefer
_DTYPES = ("uint8", "uint16", "uint32")


class Windows:
    """Windows of `length` tokens, without overlap: each token of the file is a target once per epoch.

    The target of each token is the token after it. Only the file's path is pickled, so all ranks of a
    machine map the same pages.
    """

    def __init__(self, tokens: Path | bytes, dtype: str, *, length: int, vocabulary: int) -> None:
        self._source, self._dtype, self._length = tokens, dtype, length
        self._vocabulary = vocabulary
        order = np.dtype(dtype).newbyteorder("<")
        self._tokens = (
            np.frombuffer(tokens, order)
            if isinstance(tokens, bytes)
            else np.memmap(tokens, order, mode="r")
        )

    def __reduce__(self) -> Any:
        new = partial(Windows, length=self._length, vocabulary=self._vocabulary)
        return new, (self._source, self._dtype)

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of windows, both of shape (n, length).

        Raises Fault(65) for a token outside the vocabulary.
        """
        starts = (indices * self._length).tolist()
        rows = np.stack([self._tokens[start : start + self._length + 1] for start in starts])
        if (largest := rows.max()) >= self._vocabulary:
            raise Fault(
                Exit.DATA,
                f"{self._source!s}: token {largest} is outside the vocabulary of {self._vocabulary}; "
                f"is the dtype {self._dtype}? meta.json in the folder may set dtype and vocabulary",
            )
        tokens = torch.from_numpy(rows.astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]


@dataclass(frozen=True)
class TokenFiles:
    """Training set, test set, and the number of different tokens."""

    train: Windows
    test: Windows
    vocabulary: int


def open_files(folder: Path, length: int) -> TokenFiles:
    """Open the files of a folder. Raises Fault(65) when one is missing or too short."""
    dtype, vocabulary = _meta(folder / "meta.json")
    sets = {}
    for name in ("train.bin", "val.bin"):
        file = folder / name
        needed = (length + 1) * np.dtype(dtype).itemsize
        try:
            size = file.stat().st_size if file.is_file() else None
        except OSError:
            size = None
        if size is None:
            raise Fault(Exit.DATA, f"TRAINER_DATA={folder}: {name} is missing or cannot be read")
        if size < needed or size % np.dtype(dtype).itemsize:
            raise Fault(
                Exit.DATA,
                f"TRAINER_DATA={folder}: {name} has {size} bytes; a window of {length} tokens of "
                f"{dtype} needs {needed}, and a whole number of tokens",
            )
        sets[name] = Windows(file, dtype, length=length, vocabulary=vocabulary)
    return TokenFiles(sets["train.bin"], sets["val.bin"], vocabulary)


def of_bytes(length: int, *, size: int = 1_000_000) -> TokenFiles:
    """Return the standard library's source, with one token per byte; every machine has it.

    The last tenth of its `size` bytes is the test set.
    """
    text = library_source(size)
    border = len(text) * 9 // 10
    train, test = (
        Windows(part, "uint8", length=length, vocabulary=256)
        for part in (text[:border], text[border:])
    )
    return TokenFiles(train, test, 256)


def _meta(file: Path) -> tuple[str, int]:
    """Return dtype and vocabulary. Raises Fault(65)."""
    if not file.exists():
        if (pickled := file.with_suffix(".pkl")).exists():  # of nanoGPT, when it is not GPT-2's
            raise Fault(
                Exit.DATA,
                f"{pickled} is not read, because a pickle can run code; write its vocab_size to "
                f'{file.name}, e.g. {{"vocabulary": 65}}',
            )
        return "uint16", _GPT2_VOCABULARY
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        dtype, vocabulary = found.get("dtype", "uint16"), found.get("vocabulary", _GPT2_VOCABULARY)
    except (OSError, ValueError, AttributeError) as error:
        raise Fault(Exit.DATA, f"{file}: not a JSON object: {error}") from error
    if dtype not in _DTYPES or type(vocabulary) is not int or not 2 <= vocabulary < 2**31:
        raise Fault(
            Exit.DATA,
            f"{file}: dtype={dtype!r}, vocabulary={vocabulary!r}: dtype is one of "
            f"{', '.join(_DTYPES)}, vocabulary a number of tokens",
        )
    return dtype, vocabulary
