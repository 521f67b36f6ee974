"""Where and when the pods of a job run: the job file's `scheduling`, and what it makes of a pod.

render.py job.yaml --set scheduling.queue=research --set scheduling.pack=topology.kubernetes.io/zone
"""

import typing
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from k8s.base.errors import config_error
from k8s.base.model import Count, Key, LabelSubdomain, LabelValue, Model, OneOf, Positive, Subdomain

_HOST = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"scheduling.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"


class Toleration(Model):
    """A taint that the pods tolerate, as in Kubernetes."""

    key: Key | None = Field(None, description="the taint's key (default: any)")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="how `value` is compared")
    value: LabelValue | None = Field(None, description="the taint's value")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="the taint's effect (default: any)"
    )
    toleration_seconds: Count | None = Field(None, description="for how long; only with NoExecute")

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("operator Exists takes no value; leave value out")
        if self.key is None and self.operator != "Exists":
            raise ValueError("without a key the operator must be Exists")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds needs effect: NoExecute")
        return self


class Topology(OneOf):
    """Kueue's topology-aware scheduling: one of these."""

    required: Key | None = Field(None, description="all pods in one domain of this level, or none")
    preferred: Key | None = Field(
        None, description="all pods in one domain of this level, if one has room"
    )


class Scheduling(Model):
    """Where and when the pods run."""

    queue: LabelSubdomain | None = Field(
        None, description="Kueue's LocalQueue; on launcher volcano, Volcano's Queue"
    )
    priority: LabelSubdomain | None = Field(None, description="Kueue's WorkloadPriorityClass")
    priority_class: Subdomain | None = Field(None, description="the pods' PriorityClass")
    scheduler_name: Subdomain | None = Field(None, description="the scheduler that places the pods")
    gang: bool = Field(False, description="place all pods together, or none")
    gang_timeout: Positive | None = Field(
        None,
        description="seconds that placed pods of a gang wait for places for the others (default: the "
        "scheduler's)",
    )
    node_selector: dict[Key, LabelValue] = Field({}, description="labels that a machine must have")
    tolerations: list[Toleration] = Field([], description="taints that the pods tolerate")
    affinity: dict[Literal["nodeAffinity", "podAffinity", "podAntiAffinity"], dict[str, Any]] = (
        Field({}, description="affinity, as in Kubernetes")
    )
    spread: Key | None = Field(
        None,
        description="key of a machine's label: spread the pods over its values, as far as possible",
    )
    pack: Key | None = Field(
        None,
        description="key of a machine's label: put the pods on machines "
        "with the same value, if there is room",
    )
    host_ignore_list: list[Subdomain] = Field([], description="machines to avoid")
    avoid_labels: dict[Key, list[LabelValue]] = Field(
        {},
        description="machines to avoid, by their labels' values, e.g. "
        "{autopilot.ibm.com/gpuhealth: [ERR, TESTING, EVICT]}",
    )
    topology: Topology | None = Field(
        None,
        description="keep the pods in one domain of Kueue's Topology",
    )
    exclusive_topology: Key | None = Field(
        None,
        description="key of a machine's label: the machines with one of its "
        "values run only this job",
    )

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        if self.spread is not None and self.spread == self.pack:
            raise ValueError(
                f"scheduling.pack={self.pack!r}: scheduling.spread does the "
                "opposite with this key; leave out one"
            )
        if self.gang_timeout is not None and not self.gang:
            raise ValueError("scheduling.gangTimeout: only for a gang; set scheduling.gang=true")
        for key in ("priority", "topology"):
            if getattr(self, key) is not None and self.queue is None:
                raise ValueError(f"scheduling.{key}: only for Kueue; set scheduling.queue")
        return self


@dataclass(frozen=True)
class Scheduled:
    """`pod` has fields of the pod's spec, `labels` are the job's own, `annotations` the pods'."""

    pod: dict[str, object]
    labels: dict[str, str]
    annotations: dict[str, str]
    queue: str | None
    priority_class: str | None
    scheduler: str | None
    gang: bool
    gang_timeout: int | None
    exclusive_topology: str | None


def schedule(asked: Scheduling, name: str) -> Scheduled:
    """Return where and when the pods of job `name` run. Raises Fault(64)."""
    fields = {
        "schedulerName": asked.scheduler_name,
        "priorityClassName": asked.priority_class,
        "nodeSelector": asked.node_selector,
        "tolerations": [
            one.model_dump(by_alias=True, exclude_none=True) for one in asked.tolerations
        ],
        "affinity": _affinity(asked, name),
        "topologySpreadConstraints": asked.spread
        and [
            {
                "maxSkew": 1,
                "topologyKey": asked.spread,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": _of_the_job(name),
            }
        ],
    }
    labels = {
        "kueue.x-k8s.io/queue-name": asked.queue,
        "kueue.x-k8s.io/priority-class": asked.priority,
    }
    topology = asked.topology or Topology.model_construct()
    annotations = {
        "kueue.x-k8s.io/podset-required-topology": topology.required,
        "kueue.x-k8s.io/podset-preferred-topology": topology.preferred,
    }
    return Scheduled(
        pod={key: value for key, value in fields.items() if value},
        labels={key: text for key, text in labels.items() if text is not None},
        annotations={key: text for key, text in annotations.items() if text is not None},
        queue=asked.queue,
        priority_class=asked.priority_class,
        scheduler=asked.scheduler_name,
        gang=asked.gang,
        gang_timeout=asked.gang_timeout,
        exclusive_topology=asked.exclusive_topology,
    )


def _of_the_job(name: str) -> dict[str, object]:
    return {"matchLabels": {"app.kubernetes.io/instance": name}}


def _affinity(asked: Scheduling, name: str) -> dict[str, object]:
    """Return the affinity as written, with `pack` and what to stay away from added to it."""
    made: dict[str, Any] = {str(kind): terms for kind, terms in asked.affinity.items()}
    if asked.pack is not None:
        pods = made.get("podAffinity", {})
        term = {"topologyKey": asked.pack, "labelSelector": _of_the_job(name)}
        others = pods.get(_PREFERRED, [])
        if not isinstance(others, list):
            raise config_error(f"scheduling.affinity.podAffinity.{_PREFERRED}: must be a list")
        weighed = [*others, {"weight": 100, "podAffinityTerm": term}]
        made["podAffinity"] = {**pods, _PREFERRED: weighed}
    unwanted = {_HOST: asked.host_ignore_list}
    for key, values in asked.avoid_labels.items():
        unwanted[key] = [*unwanted.get(key, []), *values]
    if unwanted := {key: values for key, values in unwanted.items() if values}:
        node = made.get("nodeAffinity", {})
        made["nodeAffinity"] = {**node, _REQUIRED: _elsewhere(node, unwanted)}
    return made


def _elsewhere(node: dict[str, Any], unwanted: dict[str, list[str]]) -> dict[str, object]:
    """Forbid labels' values in every term, since a machine need only fit one of them."""
    avoided = [
        {"key": key, "operator": "NotIn", "values": values} for key, values in unwanted.items()
    ]
    required = node.get(_REQUIRED, {"nodeSelectorTerms": [{}]})
    terms = required.get("nodeSelectorTerms") if isinstance(required, dict) else None
    if not isinstance(terms, list) or not terms:
        raise config_error(f"{_TERMS}: must be a list of terms, as in Kubernetes")
    for index, term in enumerate(terms):
        if not isinstance(term, dict) or not isinstance(term.get("matchExpressions", []), list):
            raise config_error(f"{_TERMS}[{index}]: must be a mapping with matchExpressions")
    return {
        **required,
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*term.get("matchExpressions", []), *avoided]}
            for term in terms
        ],
    }
