"""The settings that a task of one's own has: a pydantic model named Settings in its class.

    class Circles:
        class Settings(BaseModel):
            layers: int = 2             # TRAINER_TASK_LAYERS=4, or trainer.taskLayers: 4

        def __init__(self, settings, own):
            self.layers = own.layers

own = own_settings(Circles, settings)
"""

import difflib

from pydantic import BaseModel, ValidationError

from trainer.config.environment import OWN, variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings


def own_settings(kind: object, settings: Settings) -> BaseModel | None:
    """Return the settings of a task's class, checked; None when it declares none.

    Raises Fault(64) for the first that is unknown, missing or wrong.
    """
    given = {name.removeprefix(OWN): text for name, text in settings.own.items()}
    declared = getattr(kind, "Settings", None)
    if declared is None:
        for name in given:
            raise Fault(
                Exit.CONFIG,
                f"{_variable(name)}: task {settings.task} has no settings of its own; a pydantic model "
                "named Settings in its class declares them",
            )
        return None
    if not isinstance(declared, type) or not issubclass(declared, BaseModel):
        raise Fault(
            Exit.CONFIG, f"task {settings.task}: its Settings are no pydantic model: {declared!r}"
        )
    known = list(declared.model_fields)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {_variable(close[0])}?" if close else ""
            remedy = remedy or f"it has {', '.join(map(_variable, known)) or 'none'}"
            raise Fault(
                Exit.CONFIG,
                f"{_variable(name)}: task {settings.task} has no such setting; {remedy}",
            )
    try:
        return declared.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        value = f"={given[name]!r}" if name in given else ""
        what = first["msg"].replace("Input should be", "must be")
        raise Fault(
            Exit.CONFIG,
            f"{_variable(name) if name else settings.task}{value}: {what[0].lower()}{what[1:]}",
        ) from None


def in_words(own: BaseModel) -> str:
    """Return the settings with their values, as they are set."""
    return ", ".join(f"{_variable(name)}={value}" for name, value in own.model_dump().items())


def _variable(name: str) -> str:
    return variable(OWN + name)
