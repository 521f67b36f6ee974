"""What a launcher is. Each is one folder in `k8s/launchers/`, found by its name.

The folder's `__init__.py` holds LAUNCHER, described below, and the folder has its own templates:
`manifest.yaml.j2` with `pod.yaml.j2` for a cluster, `script.sh.j2` or `compose.yaml.j2` for a machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic.alias_generators import to_snake

from k8s.base.errors import config_error
from k8s.jobfile.code import Code
from k8s.jobfile.spec import JobSpec
from k8s.plan.job_kind import JobKind, Object
from k8s.plan.model import Plan
from trainer.config.exits import Action, codes_for


class RunsIn(StrEnum):
    """What a node of the job is."""

    POD = "pod"
    CONTAINER = "container"  # one, on this machine, for all nodes
    CONTAINERS = "containers"  # one for each node, on this machine
    PROCESS = "process"  # on this machine, without an image


@dataclass(frozen=True)
class Launcher:
    """What muster needs to know about a launcher.

    runs_in: what a node of the job is.
    check: refuses a job with Fault(64), or returns warnings.
    restarts: describes in one line what is done about failures.
    host: the host name of a node; master: the name at which the nodes meet.
    job_kind: how the verbs read and change a job on a cluster; None without a cluster.
    pod_suffix: a text as long as the one that the controller appends to a pod's name.
    lacks: keys of the job file that are refused, each with the reason.
    pod_sets: the paths of the pod templates in the job's manifest and the number of pods of each, for an
        AppWrapper.
    migrate: returns a job file's values for a job object of this kind, and notes; raises KeyError,
        TypeError, AttributeError, IndexError or ValueError for an object that is none.
    """

    name: str
    summary: str
    runs_in: RunsIn
    check: Callable[[JobSpec], list[str]]
    restarts: Callable[[Plan], str]
    host: Callable[[JobSpec, int], str]
    master: Callable[[JobSpec], str]
    job_kind: JobKind | None = None
    pod_suffix: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    pod_sets: Callable[[Plan], list[tuple[str, int]]] = lambda _: []
    migrate: Callable[[Object], tuple[dict[str, Any], list[str]]] | None = None

    def refuse(self, spec: JobSpec) -> None:
        """Refuse what the job file asks for and this launcher lacks. Raises Fault(64)."""
        for key, reason in self.lacks.items():
            value: object = spec
            for part in key.split("."):
                value = getattr(value, to_snake(part), None)
            if isinstance(value, Code) and value.travels:
                continue
            if value is not None and value is not False and value not in ([], {}):
                seen = f"={value!r}" if isinstance(value, (int, str)) else ""
                raise config_error(f"{key}{seen}: not on launcher {self.name}; {reason}")

    @property
    def suffix(self) -> str:
        return ".yaml" if self.runs_in in _STEMS else ".sh"

    @property
    def template(self) -> str:
        return f"{self.name}/{_STEMS.get(self.runs_in, 'script')}{self.suffix}.j2"


_STEMS = {RunsIn.POD: "manifest", RunsIn.CONTAINERS: "compose"}


def codes(*actions: Action) -> str:
    """Return the exit codes of actions as text."""
    return ", ".join(map(str, codes_for(*actions)))
