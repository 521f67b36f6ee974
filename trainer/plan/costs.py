"""What the built-in tasks' models cost, piece by piece, known without torch: the renderer plans with it.

The figures stand in `trainer/plan/costs.json`; `python -m trainer.measure` writes them from the models.
"""

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

FILE = Path(__file__).with_name("costs.json")


class Piece(BaseModel):
    """A piece of a model's chain, or the loss at its end; bytes are those of float32.

    `shapes` are its parameters', `kept` what the forward pass keeps of one sample for the backward
    pass, and `output` what it hands to the next piece.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str
    shapes: list[tuple[int, ...]]
    kept: int
    output: int


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
