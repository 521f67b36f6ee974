"""What the built-in tasks' models cost, piece by piece, known without torch: the renderer plans with it.

The figures stand in `trainer/plan/costs.json`; `trainer.tools.measure` writes them from the models.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

FILE = Path(__file__).with_name("costs.json")


class Split(BaseModel):
    """A piece over `t` ranks of the axis tp.

    Of one sample a rank keeps `whole` + `shared` / t bytes for the backward pass, and (t - 1) / t of the
    bytes `sent` leave it in both passes, by collective.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    whole: int
    shared: int
    sent: dict[str, int]


class Piece(BaseModel):
    """A piece of a model's chain, or the loss at its end; bytes are those of one sample in float32.

    `shapes` are its parameters', and `split` the dimension along which tp splits each (-1: whole on
    every rank). The forward pass keeps `kept` bytes for the backward pass: `alone` where the piece
    begins a stage, whose input then nobody else keeps, and `recomputed` where its blocks compute anew.
    `output` is what it hands to the next piece. By `flops` and `weighed`, its operations and bytes on
    torch's meta device, a model is cut into stages (`trainer/models/stages.py`).
    `splits` says the same under tp, by `split_name`; it is empty where the model cannot be split, and
    the ranks of tp have to divide all of `divisible`.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str
    shapes: list[tuple[int, ...]]
    kept: int
    alone: int
    recomputed: int
    output: int
    flops: int
    weighed: int
    split: list[int] = []
    splits: dict[str, Split] = {}
    divisible: list[int] = []


def can_split(pieces: Sequence[Piece], ranks: int) -> bool:
    """Return whether the model of `pieces` can be split over so many ranks of tp."""
    first = pieces[0]
    return ranks == 1 or (bool(first.splits) and not any(n % ranks for n in first.divisible))


def split_name(*, sequence_parallel: bool, loss_parallel: bool) -> str:
    """Return under which name `Piece.splits` has what is kept and sent with these settings."""
    return f"sequence={sequence_parallel:d},loss={loss_parallel:d}"


def pieces_of(task: str) -> list[Piece] | None:
    """Return the pieces of a built-in task's model in order, None for a task of one's own."""
    return _sheet().get(task)


@cache
def _adapter() -> TypeAdapter[dict[str, list[Piece]]]:
    return TypeAdapter(dict[str, list[Piece]])  # not before it is needed: it takes time to build


@cache
def _sheet() -> dict[str, list[Piece]]:
    return _adapter().validate_json(FILE.read_bytes())


def text_of(sheet: dict[str, list[Piece]]) -> bytes:
    """Return the file's text for `sheet`."""
    return _adapter().dump_json(sheet, indent=1) + b"\n"
