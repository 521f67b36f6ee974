"""What the launcher itself needs of the settings; for a command that is not our trainer, with defaults.

options = from_environment(os.environ, name="train")
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from trainer.config.contract import Contract
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.membership import Rules


@dataclass(frozen=True)
class Options:
    """As the settings of these names (python -m trainer --help); times in seconds."""

    rendezvous_timeout: float = 600
    last_call: float = 5
    peer_timeout: float = 3
    peer_losses: float = 10
    health_limit: float = 0  # 0: the launcher's file is never old
    health: str = ""
    run_folder: str = ""

    def rules(self, contract: Contract) -> Rules:
        """Return what the rendezvous server decides by."""
        return Rules(
            min_nodes=contract.min_nodes,
            max_nodes=contract.max_nodes,
            elastic=contract.elastic,
            peer_timeout=self.peer_timeout,
            last_call=self.last_call,
        )


_NUMBERS = ("rendezvous_timeout", "last_call", "peer_timeout", "peer_losses")


def from_environment(environment: Mapping[str, str], *, name: str) -> Options:
    """Read the TRAINER_* variables that are for the launcher. Raises Fault(64).

    `name` is the name of what runs, for its run folder.
    """
    numbers = {}
    for field in fields(Options):
        variable = f"TRAINER_{field.name.upper()}"
        text = environment.get(variable)
        if text and field.name in _NUMBERS:
            try:
                numbers[field.name] = float(text)
            except ValueError:
                numbers[field.name] = -1
            if not 0 <= numbers[field.name] < float("inf"):
                raise Fault(Exit.CONFIG, f"{variable}={text!r}: must be a number, at least 0")
    return Options(
        **numbers,
        health=environment.get("TRAINER_HEALTH", ""),
        run_folder=environment.get("TRAINER_OUT") or f"runs/{name}",
    )
