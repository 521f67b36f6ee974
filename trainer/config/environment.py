"""Reads the settings from TRAINER_* variables, or from the job file's `trainer:` block.

The block has the same names in lower camel case. `parse` checks both, so the trainer accepts every value
that the renderer has accepted. Imports neither torch nor kubernetes.

    TRAINER_MODE=ddp TRAINER_GLOBAL_BATCH=128 torchrun --nproc-per-node 2 -m trainer
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from trainer.config.catalogue import catalogue, find_task, task_names
from trainer.config.exits import Exit, Fault
from trainer.config.modes import MODES
from trainer.config.settings import Settings

PREFIX = "TRAINER_"
# Signs checkpoints. It is a secret, so it is not a setting: events show the settings.
KEY = "TRAINER_CHECKPOINT_KEY"
OWN = "task_"  # the prefix of the names of a task's own settings

# Words of pydantic's messages, and ours.
_PLAIN = {
    "a valid integer(, .*)?": "a whole number",
    "a valid number(, .*)?": "a number",
    "a valid boolean(, .*)?": "true or false",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}

# The name of a setting as the user has written it: "TRAINER_LR" or "trainer.lr".
Label = Callable[[str], str]


def variable(field: str) -> str:
    """Return the environment variable of a field: global_batch -> TRAINER_GLOBAL_BATCH."""
    return PREFIX + field.upper()


def plain(message: str) -> str:
    """Return pydantic's message about a value in the words of our own messages."""
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    for words, ours in _PLAIN.items():
        message = re.sub(words, ours, message)
    return message


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the TRAINER_* variables; an empty value counts as unset. Raises Fault(64)."""
    values = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value != "" and name != KEY
    }
    return parse(values, label=variable)


def parse(values: Mapping[str, str], *, label: Label) -> Settings:
    """Check `values` (field name to text) and return the settings.

    Raises Fault(64) for the first wrong one.
    """
    task = values.get("task", Settings.model_fields["task"].default)
    for name in values:
        if name.startswith(OWN) and ":" not in task:
            having = [one for one, entry in catalogue().items() if entry.own_settings]
            if task not in having:
                raise Fault(
                    Exit.CONFIG,
                    f"{label(name)}: {label('task')}={task!r} has no settings of its own; "
                    f"only {', '.join(having)} and your own tasks, package.module:Class, can have some",
                )
        if name not in Settings.model_fields and not name.startswith(OWN):
            close = difflib.get_close_matches(name, Settings.model_fields, n=1)
            remedy = f"did you mean {label(close[0])}?" if close else "--help lists them all"
            raise Fault(Exit.CONFIG, f"{label(name)}: no such setting; {remedy}")
    defaults = find_task(task).defaults if task in task_names() else {}
    try:
        settings = Settings.model_validate(defaults | dict(values))
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        # More than one for a field with several types, such as compile.
        found = [plain(one["msg"]) for one in error.errors() if one["loc"][0] == name]
        message = " or ".join(found).replace("or must be", "or")
        raise Fault(Exit.CONFIG, f"{label(name)}={values[name]!r}: {message}") from None
    _check_names(settings, label)
    _check_health_timeout(settings, label)
    return settings


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the TRAINER_* variables from which `from_environment` reads these settings.

    Only the settings that were set, in the order of the model.
    """
    return {
        variable(name): str(getattr(settings, name))
        for name in Settings.model_fields
        if name in settings.model_fields_set and getattr(settings, name) is not None
    } | {variable(name): value for name, value in settings.own.items()}


def _check_names(settings: Settings, label: Label) -> None:
    if settings.mode not in ("auto", *MODES):
        raise Fault(
            Exit.CONFIG,
            f"{label('mode')}={settings.mode!r}: no such mode; choose auto, {', '.join(MODES)}",
        )
    module, colon, attribute = settings.task.partition(":")
    own = all(part.isidentifier() for part in (*module.split("."), attribute))
    if settings.task not in task_names() and not (colon and own):
        raise Fault(
            Exit.CONFIG,
            f"{label('task')}={settings.task!r}: no such task; choose "
            f"{', '.join(task_names())} or package.module:Class",
        )


def _check_health_timeout(settings: Settings, label: Label) -> None:
    """Raise Fault(64) if the liveness timeout does not exceed every timeout that reports a cause."""
    if 0 < settings.health_limit <= settings.longest_wait:
        waits = ("rendezvous_timeout", "collective_timeout", "checkpoint_timeout")
        longest = max(waits, key=lambda name: int(getattr(settings, name)))
        raise Fault(
            Exit.CONFIG,
            f"{label('health_timeout')}={settings.health_timeout}: must be above "
            f"{label(longest)}={settings.longest_wait}, which reports a cause; 0 disables",
        )
