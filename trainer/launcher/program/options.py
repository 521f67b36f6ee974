"""The settings that the launcher itself needs, with defaults for a program that is not our trainer.

options = from_environment(os.environ, name="train")
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.config.contract import Contract
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.membership import Rules


@dataclass(frozen=True)
class Options:
    """The settings of these names (python -m trainer --help); times in seconds."""

    rendezvous_timeout: float = 600
    last_call: float = 5
    peer_timeout: float = 3
    peer_losses: float = 10
    health_limit: float = 0  # 0: the launcher's file is never too old
    health: str = ""
    run_folder: str = ""
    # For another program only.
    stall: float = 0  # 0: never
    metrics_port: int = 0  # 0: none
    patterns: Mapping[str, str] = field(default_factory=dict)
    exit_codes: Mapping[int, int] | None = None  # its codes and ours; None: it uses our table

    def rules(self, contract: Contract) -> Rules:
        """Return the rules by which the rendezvous server decides."""
        return Rules(
            min_nodes=contract.min_nodes,
            max_nodes=contract.max_nodes,
            elastic=contract.elastic,
            peer_timeout=self.peer_timeout,
            last_call=self.last_call,
        )


_NUMBERS = ("rendezvous_timeout", "last_call", "peer_timeout", "peer_losses", "stall")
_PATTERNS = ("step", "loss", "samples_per_second", "checkpoint")


def from_environment(environment: Mapping[str, str], *, name: str) -> Options:
    """Read the launcher's variables for a program that is not our trainer. Raises Fault(64).

    `name` is the program's name, for its run folder.
    """
    numbers = {}
    for option in _NUMBERS:
        variable = f"TRAINER_{option.upper()}" if option != "stall" else "MUSTER_STALL"
        if text := environment.get(variable):
            try:
                numbers[option] = float(text)
            except ValueError:
                numbers[option] = -1
            if not 0 <= numbers[option] < float("inf"):
                raise Fault(Exit.CONFIG, f"{variable}={text!r}: must be a number, at least 0")
    return Options(
        **numbers,
        health=environment.get("TRAINER_HEALTH", ""),
        run_folder=environment.get("TRAINER_OUT") or f"runs/{name}",
        metrics_port=whole(
            environment, "TRAINER_METRICS_PORT", most=65535, wanted="a port, 1 to 65535"
        ),
        patterns=_patterns(environment.get("MUSTER_PATTERNS") or "{}"),
        exit_codes=_exit_codes(environment.get("MUSTER_EXIT_CODES") or ""),
    )


def whole(environment: Mapping[str, str], variable: str, *, most: int, wanted: str) -> int:
    """Return a number from 0 to `most`; 0 if it is not set. Raises Fault(64)."""
    text = environment.get(variable) or "0"
    if not text.isdecimal() or int(text) > most:
        raise Fault(Exit.CONFIG, f"{variable}={text!r}: must be {wanted}")
    return int(text)


def _patterns(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
        groups = {name: re.compile(pattern) for name, pattern in found.items()}
    except (ValueError, AttributeError, TypeError, re.error) as error:
        raise Fault(Exit.CONFIG, f"MUSTER_PATTERNS={text!r}: {error}") from None
    for name, pattern in groups.items():
        if name not in _PATTERNS or (pattern.groups != 1 and "value" not in pattern.groupindex):
            raise Fault(
                Exit.CONFIG,
                f"MUSTER_PATTERNS: {name}={pattern.pattern!r}: must be one of {', '.join(_PATTERNS)}, "
                "with one group, or one named value",
            )
    return dict(found)


def _exit_codes(text: str) -> dict[int, int]:
    if not re.fullmatch(r"(\d{1,3}=\d{1,3}(,\d{1,3}=\d{1,3})*)?", text):
        raise Fault(Exit.CONFIG, f"MUSTER_EXIT_CODES={text!r}: must be as in 3=65,4=69")
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    found = {int(own): int(meaning) for own, meaning in pairs}
    for meaning in found.values():
        if meaning not in set(Exit):
            known = ", ".join(str(int(code)) for code in Exit)
            raise Fault(Exit.CONFIG, f"MUSTER_EXIT_CODES={text!r}: {meaning} is none of {known}")
    return found
