"""The job file's `run`: a script, module or command of the user's own in place of a task.

render.py job.yaml --set 'run={script: train.py, args: [--epochs, 3], patterns: lightning}' --plan
"""

import json
import re
import typing
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from k8s.base.model import OneOf, Positive, Word
from k8s.base.names import matching
from trainer.config.exits import Exit

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf"

# What each framework writes, by the names of patterns. A progress bar is `5/100 [00:01<00:20`, one
# within another, as for an evaluation, ends with the cursor's way up. Lightning's starts again in an
# epoch. A bar at 0 has still the loss of the epoch before.
SETS: dict[str, dict[str, str]] = {
    "transformers": {
        "step": r"\| *([1-9][0-9]*)/[0-9]+ \[(?!.*\x1b\[A)",
        "loss": rf"'loss': '?({_NUMBER})",
        "samples_per_second": rf"'train_samples_per_second': '?({_NUMBER})",
        "checkpoint": r"Saving model checkpoint to (\S+)",
    },
    # Where rich is installed, its bar comes once, at the end: `Epoch 2/2 ... 8/8 0:01 ... loss: 0.5`.
    "lightning": {
        "step": (
            r"Epoch (?P<epoch>[0-9]+)(?:: .*\||/[0-9]+ .*?) *"
            r"(?P<value>[1-9][0-9]*)/(?P<of>[0-9]+) (?:\[|[0-9]+:)"
        ),
        "loss": rf"\b(?:train_)?loss(?:_step)?(?:=|: )({_NUMBER})",
    },
    # Colours stand right before the words, so there is no word boundary. A line of a validation is none.
    "torchtitan": {
        "step": r"^(?!.*validate step).*?step: *([0-9]+)",
        "loss": rf"^(?!.*validate step).*?loss: *({_NUMBER})",
    },
    "key=value": {
        "step": r"\bstep=([0-9]+)",
        "loss": rf"\bloss=({_NUMBER})",
        "samples_per_second": rf"\bsamples_per_second=({_NUMBER})",
        "checkpoint": r"\bcheckpoint=(\S+)",
    },
}


def _pattern(text: str) -> str:
    try:
        found = re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if found.groups != 1 and "value" not in found.groupindex:
        raise ValueError(
            f"has {found.groups} groups in brackets; it must have one, e.g. loss=([0-9.]+), or one "
            "named value, (?P<value>...)"
        )
    return text


def _keys_as_text(value: Any) -> Any:
    """YAML reads the key of `{3: 65}` as a number."""
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value


def _own_code(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text) or int(text) > 255:
        raise ValueError("must be an exit code from 1 to 255")
    if int(text) == Exit.STOPPED:
        raise ValueError("always means that the program was stopped by a signal; leave it out")
    return text


def _known_code(code: int) -> int:
    if code not in list(Exit):
        raise ValueError(f"must be one of {', '.join(str(int(one)) for one in Exit)}")
    return code


def _program(words: list[str]) -> list[str]:
    if not words or not words[0]:
        raise ValueError("must name a program, e.g. [bash, -c, ./train.sh]")
    return words


_Metric = Literal["step", "loss", "samples_per_second", "checkpoint"]
_Set = Literal["transformers", "lightning", "torchtitan", "key=value"]
_Patterns = Annotated[
    Annotated[_Set, Tag("<set>")]
    | Annotated[dict[_Metric, Annotated[str, AfterValidator(_pattern)]], Tag("<own>")],
    Discriminator(lambda value: "<own>" if isinstance(value, dict) else "<set>"),
]
_script = matching(r"(?s)(?!-).+", "must be the path of a script, e.g. train.py")
_module = matching(
    r"[^\W0-9]\w*(\.[^\W0-9]\w*)*", "must be the name of a module, e.g. my_package.train"
)


class Run(OneOf):
    """Your own program, which each rank runs, under the same launcher as the trainer."""

    one_of = ("script", "module", "command")

    script: Annotated[str, AfterValidator(_script)] | None = Field(
        None, description="path of a Python script, in `code` or in the image"
    )
    module: Annotated[str, AfterValidator(_module)] | None = Field(
        None, description="a Python module, as for python -m"
    )
    command: Annotated[list[Word], AfterValidator(_program)] | None = Field(
        None, description="any program and its arguments, without a shell"
    )
    args: list[Word] = Field([], description="arguments of the script, module or command")
    stall: Positive | None = Field(
        None,
        description="if no rank of a node writes output or uses processor time for so many seconds, "
        "they count as hung: exit code 69",
    )
    patterns: _Patterns | None = Field(
        None,
        description=f"how to read the program's output: {', '.join(SETS)}, or regular expressions for "
        f"{', '.join(typing.get_args(_Metric))}, each with one group, or a group named value",
    )
    exit_codes: Annotated[
        dict[
            Annotated[str, AfterValidator(_own_code)], Annotated[int, AfterValidator(_known_code)]
        ],
        BeforeValidator(_keys_as_text),
    ] = Field(
        {},
        description="translates the program's exit codes, e.g. {3: 65} (default: keep 0 and 143, "
        "else 70)",
    )

    @property
    def words(self) -> tuple[str, ...]:
        """The program as `python -m trainer.launch` takes it."""
        if self.script is not None:
            return (self.script, *self.args)
        if self.module is not None:
            return ("-m", self.module, *self.args)
        return ("--", *(self.command or ()), *self.args)

    @property
    def environment(self) -> dict[str, str]:
        """The launcher's variables about the program."""
        found = {}
        if self.exit_codes:
            codes = sorted(self.exit_codes.items(), key=lambda pair: int(pair[0]))
            found["MUSTER_EXIT_CODES"] = ",".join(f"{own}={code}" for own, code in codes)
        if self.stall is not None:
            found["MUSTER_STALL"] = str(self.stall)
        if self.patterns:
            own = SETS[self.patterns] if isinstance(self.patterns, str) else self.patterns
            found["MUSTER_PATTERNS"] = json.dumps(own)
        return found
