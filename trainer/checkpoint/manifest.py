"""The format of `muster.json`, a checkpoint's manifest, and its checksum.

The file is {"checksum": ..., "checkpoint": {...}}; the checksum is over the canonical JSON of
"checkpoint". Later formats keep this structure, so that a reader can distinguish a newer format from
damage.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from hmac import compare_digest
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.config.environment import KEY
from trainer.config.exits import Exit, Fault

FORMAT = 2  # 2: progress has steps and identity
MANIFEST_FILE = "muster.json"
ASIDE = "aside"  # the folder of checkpoints that were set aside, with a number
MOST_BYTES = 256 << 20  # of a manifest: a thousand tensors in chunks of 10,000 ranks need less
DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in vars(torch).values()
    if isinstance(kind, torch.dtype)
}

_NAME = re.compile(r"step-(\d{8,20})")
_Count = Annotated[int, Field(ge=0)]
_Shape = tuple[_Count, ...]


class Damage(Exception):
    """How a checkpoint differs from what was written."""


@dataclass(frozen=True)
class Progress:
    """How far a run is, and which run it is.

    `steps`: the number of steps of the whole run. `identity`: what decides its result, by name; empty in
    format 1.

    Random states are not saved. Random numbers are a function of (seed, step, rank), the order of the
    data is a function of (seed, epoch, position), and the learning rate is a function of the step.
    """

    step: int
    samples: int
    task: str
    seed: int
    global_batch: int
    steps: int | None = None
    identity: dict[str, Any] = field(default_factory=dict)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Part):
    """A data file: its number of bytes, its zlib.crc32, and its signature if there is a key."""

    size: _Count
    crc32: _Count
    signature: str = ""


class Chunk(_Part):
    """A block of a tensor: of `sizes`, at `offsets`; stored row-major from byte `start` of `file`."""

    offsets: _Shape
    sizes: _Shape
    file: str
    start: _Count


class Tensor(_Part):
    """A tensor and the chunks that make it up."""

    dtype: str
    shape: _Shape
    chunks: tuple[Chunk, ...]


class Manifest(_Part):
    """A checkpoint: how far the run was, and where each tensor is.

    `values` has the rest of the state, also by flat names. `metric` is the score of an evaluation at
    this step; larger is better.
    """

    format: int
    progress: Progress
    metric: float | None
    torch: str
    mode: str
    world_size: _Count
    files: dict[Annotated[str, Field(pattern=r"^rank-\d{5,}\.data$")], File]
    tensors: dict[str, Tensor]
    values: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of the data files."""
        return sum(file.size for file in self.files.values())


def name_of(step: int) -> str:
    """Return the name of the checkpoint after optimiser step `step`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's name; None if it is no such name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of checkpoints among `names`, oldest first."""
    steps = {name: step for name in names if (step := step_of(name)) is not None}
    return sorted(steps, key=steps.__getitem__)


def encode(manifest: Manifest) -> bytes:
    """Return the text of `muster.json`."""
    body = manifest.model_dump()
    if not (key := key_from()):
        for file in body["files"].values():
            del file["signature"]
    return json.dumps({"checksum": checksum(body, key), "checkpoint": body}, indent=1).encode()


def decode(text: bytes, name: str) -> Manifest:
    """Return the manifest in the text of `muster.json` of the checkpoint `name`.

    Raises Damage when it is not what was written, Fault(65) when it has a newer format.
    """
    try:
        outer = json.loads(text)
        body = outer["checkpoint"]
        key, found = key_from(), outer["checksum"]
        if not compare_digest(found, checksum(body, key)):
            if key and compare_digest(found, checksum(body)):
                raise Damage(f"{MANIFEST_FILE} is not signed, and {KEY} is set")
            signed = any(file.get("signature") for file in body["files"].values())
            raise Damage(
                f"{MANIFEST_FILE} was not signed with this {KEY}"
                if key
                else f"{MANIFEST_FILE} is signed; {KEY} is needed to read it"
                if signed
                else f"{MANIFEST_FILE} does not match its checksum"
            )
        if body["format"] > FORMAT:
            raise Fault(
                Exit.DATA,
                f"checkpoint {name}: written in format {body['format']}, this muster reads up to "
                f"{FORMAT}; use the newer one, or set another TRAINER_OUT",
            )
        manifest = Manifest.model_validate(body)
        _check(manifest, name)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Damage(f"{MANIFEST_FILE} is not in the format: {where}: {first['msg']}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damage(f"{MANIFEST_FILE} is unreadable: {error}") from error
    return manifest


def checksum(body: Mapping[str, Any], key: bytes = b"") -> str:
    """Return the checksum of `body`; it is the same in this and all later formats."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return keyed(key, canonical.encode()).hexdigest()


def keyed(key: bytes, text: bytes = b"") -> blake2b:
    """Return a checksum that only a holder of `key` can make (RFC 7693); anybody, if `key` is empty."""
    return blake2b(text, key=key, digest_size=16)


def key_from() -> bytes:
    """Return the key of TRAINER_CHECKPOINT_KEY, of any length, empty if it is not set."""
    text = os.environ.get(KEY, "")
    return blake2b(text.encode(), digest_size=64).digest() if text else b""


def _check(manifest: Manifest, name: str) -> None:
    step = step_of(name)
    progress = manifest.progress
    if step is not None and step != progress.step:
        raise Damage(f"{MANIFEST_FILE} belongs to step {progress.step}")
    if progress.steps is not None and progress.step > progress.steps:
        raise Damage(f"{MANIFEST_FILE} says step {progress.step} of {progress.steps}")
    for key, tensor in manifest.tensors.items():
        if tensor.dtype not in DTYPES:
            raise Damage(f"{MANIFEST_FILE}: {key} has the unknown type {tensor.dtype}")
        for chunk in tensor.chunks:
            file = manifest.files.get(chunk.file)
            end = chunk.start + math.prod(chunk.sizes) * DTYPES[tensor.dtype].itemsize
            inside = all(
                offset + size <= extent
                for offset, size, extent in zip(
                    chunk.offsets, chunk.sizes, tensor.shape, strict=True
                )
            )
            if file is None or end > file.size or not inside:
                raise Damage(f"{MANIFEST_FILE}: {key} is outside of {chunk.file}")
