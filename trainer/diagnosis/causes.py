"""Reads the table of causes, causes.toml: patterns of a failure's text, its meaning, what to do.

cause = find("OSError: [Errno 28] No space left on device (exit 71)")
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Cause:
    """A row. `follows`: it is usually the result of another failure, such as a lost peer."""

    name: str
    pattern: re.Pattern[str]
    meaning: str
    do: str
    follows: bool


@cache
def causes() -> tuple[Cause, ...]:
    """Return the rows; the cause of a text is the first row whose pattern matches it."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(
        Cause(
            row["name"],
            re.compile("|".join(row["patterns"])),
            row["meaning"],
            row["do"],
            row.get("follows", False),
        )
        for row in table["cause"]
    )


def find(text: str) -> Cause | None:
    """Return the cause of a text, None when no row matches."""
    return next((cause for cause in causes() if cause.pattern.search(text)), None)
