"""What a launcher is. Each is one folder in `k8s/launchers/`, found by its name.

The folder's `__init__.py` holds LAUNCHER, the facts below; beside it lie its own templates:
`manifest.yaml.j2` with `pod.yaml.j2` for a cluster, `script.sh.j2` or `compose.yaml.j2` for a machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic.alias_generators import to_snake

from k8s.jobfile.spec import JobSpec
from k8s.plan.model import Plan
from k8s.plan.status import Kind
from trainer.config.exits import Action, Exit, Fault, codes_for


class RunsIn(StrEnum):
    """What a node of the job is."""

    POD = "pod"
    CONTAINER = "container"  # one, on this machine, for all nodes
    CONTAINERS = "containers"  # one for each node, on this machine
    PROCESS = "process"  # on this machine, without an image


@dataclass(frozen=True)
class Launcher:
    """`host` names the host of a node, `master` where all meet, `check` refuses or warns.

    `restarts` puts faults in words. `pod_suffix` is as long as what a controller adds to a host's name
    and counts as part of it.
    `status` is how a cluster's object of it is read; a machine has none.
    `lacks` has the keys of a job file that are refused, each with the reason. `pod_sets` are the places
    of the pods in the job's manifest and how many each makes, for a queue that counts them.
    """

    name: str
    summary: str
    runs_in: RunsIn
    check: Callable[[JobSpec], list[str]]
    restarts: Callable[[Plan], str]
    host: Callable[[JobSpec, int], str]
    master: Callable[[JobSpec], str]
    status: Kind | None = None
    pod_suffix: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    pod_sets: Callable[[Plan], list[tuple[str, int]]] = lambda _: []

    def refuse(self, spec: JobSpec) -> None:
        """Refuse what the job file asks for and this launcher lacks. Raises Fault(64)."""
        for key, reason in self.lacks.items():
            value: object = spec
            for part in key.split("."):
                value = getattr(value, to_snake(part), None)
            if value is not None and value is not False and value not in ([], {}):
                seen = f"={value!r}" if isinstance(value, (int, str)) else ""
                raise Fault(Exit.CONFIG, f"{key}{seen}: not on launcher {self.name}; {reason}")

    @property
    def suffix(self) -> str:
        return ".yaml" if self.runs_in in _STEMS else ".sh"

    @property
    def template(self) -> str:
        return f"{self.name}/{_STEMS.get(self.runs_in, 'script')}{self.suffix}.j2"


_STEMS = {RunsIn.POD: "manifest", RunsIn.CONTAINERS: "compose"}


def codes(*actions: Action) -> str:
    """Return the exit codes of actions in words."""
    return ", ".join(map(str, codes_for(*actions)))
