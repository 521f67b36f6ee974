"""What a launcher is. Each is one folder in `k8s/templates/`, found by its name.

The folder's `__init__.py` holds LAUNCHER, the facts below; beside it lie its own templates:
`manifest.yaml.j2` with `pod.yaml.j2` for a cluster, `script.sh.j2` or `compose.yaml.j2` for a machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic.alias_generators import to_snake

from trainer.exits import Action, Exit, Fault, codes_for

if TYPE_CHECKING:
    from k8s.plan import Plan
    from k8s.spec import JobSpec

TEMPLATES = Path(__file__).parent / "templates"


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
    `lacks` has the keys of a job file that are refused, each with the reason. `pod_sets` are the places
    of the pods in the job's manifest and how many each makes, for a queue that counts them.
    """

    name: str
    summary: str
    runs_in: RunsIn
    check: Callable[["JobSpec"], list[str]]
    restarts: Callable[["Plan"], str]
    host: Callable[["JobSpec", int], str]
    master: Callable[["JobSpec"], str]
    pod_suffix: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    pod_sets: Callable[["Plan"], list[tuple[str, int]]] = lambda _: []

    def refuse(self, spec: "JobSpec") -> None:
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


@cache
def known() -> list[str]:
    """Return the names of all launchers."""
    return sorted(file.parent.name for file in TEMPLATES.glob("*/__init__.py"))


def find(name: str) -> Launcher:
    """Return a launcher by its name. Raises Fault(64)."""
    if name not in known():
        raise Fault(
            Exit.CONFIG, f"launcher={name!r}: no such launcher; choose {', '.join(known())}"
        )
    launcher = import_module(f"k8s.templates.{name}").LAUNCHER
    assert isinstance(launcher, Launcher)  # noqa: S101  # tells mypy
    return launcher


# What no machine has: nothing runs there before the trainer.
LACKED_BY_A_MACHINE = {
    "code": "nothing runs on this machine before the trainer; check it out yourself, and set PYTHONPATH",
    "setup": "nothing runs on this machine before the trainer; run the commands yourself",
}


def not_restarted(_: "Plan") -> str:
    """Say what a machine does with a job that failed."""
    return "none; run it again and it resumes"


def codes(*actions: Action) -> str:
    """Return the exit codes of actions in words."""
    return ", ".join(map(str, codes_for(*actions)))


def warnings_of_a_machine(spec: "JobSpec") -> list[str]:
    """Return what people should know who run a cluster's job on one machine."""
    warnings = []
    if spec.most_nodes > 1:
        warnings.append(f"nodes: the ranks of all {spec.most_nodes} run on this machine")
    if spec.data and not spec.data.host_path:
        kind = next(key for key in ("pvc", "csi", "pull") if getattr(spec.data, key))
        warnings.append(f"data.{kind}: not on this machine; the script asks for TRAINER_DATA")
    if spec.checkpoints and not (spec.checkpoints.host_path or spec.checkpoints.empty_dir):
        kind = next(key for key in ("pvc", "csi", "claim") if getattr(spec.checkpoints, key))
        warnings.append(f"checkpoints.{kind}: not on this machine; the run folder is in build/")
    if spec.volumes:
        names = ", ".join(one.name for one in spec.volumes)
        warnings.append(f"volumes: not on this machine; the trainer has no {names}")
    if spec.pod_patch.spec:
        warnings.append("podPatch: there is no pod on this machine; it is passed over")
    if spec.env_from:
        warnings.append("envFrom: not on this machine; the trainer has none of those variables")
    return warnings


def refuse_for_docker(spec: "JobSpec") -> None:
    """Refuse what Docker cannot do. Raises Fault(64)."""
    resource = spec.resources.gpu_resource
    if spec.resources.gpu and resource != "nvidia.com/gpu":
        raise Fault(
            Exit.CONFIG,
            f"resources.gpuResource={resource!r}: docker hands out NVIDIA GPUs only; use nvidia.com/gpu "
            "or another launcher",
        )
    paths: dict[str, object] = {f"trainer.{key}": spec.trainer.get(key) for key in ("data", "out")}
    for key, volume in (("data", spec.data), ("checkpoints", spec.checkpoints)):
        paths[f"{key}.hostPath"] = volume and volume.host_path
    for key, path in paths.items():
        if {",", '"'} & set(str(path)):
            raise Fault(
                Exit.CONFIG, f"{key}={path!r}: docker mounts no path with a comma or a quote"
            )


def check_coscheduled(spec: "JobSpec") -> list[str]:
    """Refuse a gang for a scheduler that does not read coscheduling's PodGroup; return warnings."""
    if spec.scheduling.gang and spec.scheduling.scheduler_name == "volcano":
        raise Fault(
            Exit.CONFIG,
            "scheduling.schedulerName='volcano': has PodGroups of its own, and would place these pods "
            "one by one; use launcher volcano, or trainjob",
        )
    return warnings_of_a_gang(spec)


def warnings_of_a_gang(spec: "JobSpec") -> list[str]:
    """Return what people should know whose pods are placed together by a PodGroup."""
    if spec.scheduling.gang and spec.scheduling.scheduler_name is None:
        return [
            "scheduling.gang: needs a scheduler that reads a PodGroup; set scheduling.schedulerName"
        ]
    return []
