"""A task's own settings: a pydantic model named Settings in its class.

    class Circles:
        class Settings(BaseModel):
            layers: int = 2             # TRAINER_TASK_LAYERS=4, or trainer.taskLayers: 4
            widths: list[int] = [16]    # TRAINER_TASK_WIDTHS="[16, 32]", as JSON

        def __init__(self, settings, own):
            self.layers = own.layers

own = own_settings(Circles, settings)

The own settings of built-in tasks are here, because the renderer checks them without torch.
"""

import contextlib
import difflib
import json
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError

from trainer.config.environment import OWN, Label, plain, variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings


class ImageFolder(BaseModel):
    """Options of imagefolder that torchvision's reference recipe uses."""

    augment: Literal["window", "crop", "rand", "trivial"] = "window"
    mixup: float = Field(0.0, ge=0)
    cutmix: float = Field(0.0, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    decay_all: bool = True
    resize: int | None = Field(None, ge=8)


class HuggingFace(BaseModel):
    """Model and samples of huggingface. `head`: a class of the package transformers."""

    head: str = Field("AutoModelForCausalLM", pattern=r"^AutoModelFor\w+$")
    tokenizer: str | None = None
    length: int = Field(512, ge=2)


class Tokens(BaseModel):
    """The text that tokens generates in an evaluation. `tokenizer`: a file of the package tokenizers."""

    DO_NOT_DECIDE: ClassVar = ("sample", "tokenizer")

    sample: int = Field(0, ge=0)
    tokenizer: Path | None = None


BUILT_IN: dict[str, type[BaseModel]] = {
    "huggingface": HuggingFace,
    "imagefolder": ImageFolder,
    "tokens": Tokens,
}

# By the type of pydantic's error: how such a value is written as JSON.
_JSON = dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "[1, 2]")
_JSON |= dict.fromkeys(("dict_type", "model_type"), '{"a": 1}')


def own_settings(kind: object, settings: Settings) -> BaseModel | None:
    """Return the checked own settings of a task's class; None if it declares none.

    Raises Fault(64) for the first setting that is unknown, missing or wrong.
    """
    return _checked(getattr(kind, "Settings", None), settings, variable)


def check_built_in(settings: Settings, *, label: Label) -> None:
    """Raise Fault(64) when one of a built-in task's own settings is unknown or wrong."""
    if settings.task in BUILT_IN:
        _checked(BUILT_IN[settings.task], settings, label)


def _checked(declared: object, settings: Settings, label: Label) -> BaseModel | None:
    def own_label(name: str) -> str:
        return label(OWN + name)

    given = {name.removeprefix(OWN): text for name, text in settings.own.items()}
    if declared is None:
        for name in given:
            raise Fault(
                Exit.CONFIG,
                f"{own_label(name)}: task {settings.task} has no settings of its own; declare them in a "
                "pydantic model named Settings in its class",
            )
        return None
    if not isinstance(declared, type) or not issubclass(declared, BaseModel):
        raise Fault(
            Exit.CONFIG, f"task {settings.task}: its Settings is not a pydantic model: {declared!r}"
        )
    known = list(declared.model_fields)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            named = ", ".join(map(own_label, known)) or "none"
            remedy = f"did you mean {own_label(close[0])}?" if close else f"it has {named}"
            raise Fault(
                Exit.CONFIG,
                f"{own_label(name)}: task {settings.task} has no such setting; {remedy}",
            )
    try:
        return _parsed(declared, given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        value = f"={given[name]!r}" if name in given else ""
        what = plain(first["msg"])
        if isinstance(first["input"], str) and first["type"] in _JSON:
            what += f" in JSON, such as {_JSON[first['type']]}"
        raise Fault(
            Exit.CONFIG,
            f"{own_label(name) if name else settings.task}{value}: {what[0].lower()}{what[1:]}",
        ) from None


def _parsed(declared: type[BaseModel], given: dict[str, str]) -> BaseModel:
    """Check the texts. A list, a mapping or a number of a Literal, which no text is, is read as JSON."""
    try:
        return declared.model_validate(given, by_name=True)
    except ValidationError as error:
        read: dict[str, Any] = {}
        for one in error.errors():
            name = str(one["loc"][0]) if one["loc"] else ""
            with contextlib.suppress(KeyError, ValueError, RecursionError):
                value = json.loads(given[name])
                if isinstance(value, list | dict) or one["type"] in ("literal_error", "enum"):
                    read[name] = value
        if not read:
            raise
    return declared.model_validate(given | read, by_name=True)


def values_of(own: BaseModel) -> dict[str, Any]:
    """Return the values as JSON has them; those of a set in order, which differs between processes."""
    values = own.model_dump(mode="json")
    for name, value in values.items():
        if isinstance(getattr(own, name), set | frozenset):
            values[name] = sorted(value, key=str)
    return values


def variables_of(own: BaseModel) -> dict[str, str]:
    """Return the variables that set the same values; None cannot be set."""
    return {
        variable(OWN + name): value if isinstance(value, str) else json.dumps(value)
        for name, value in values_of(own).items()
        if value is not None
    }


def in_words(own: BaseModel) -> str:
    """Return the settings with their values, in the form of variables."""
    return ", ".join(f"{name}={value}" for name, value in variables_of(own).items())
