"""The objects made with a job: network policy, claims, TensorBoard, metrics, budget, what travels.

Each is one template in `k8s/launchers/shared/extras/`.

render.py job.yaml --set metrics.port=9400 --set 'tensorboard={}' --plan
"""

from collections.abc import Iterator
from typing import Any

from k8s.base.errors import config_error
from k8s.base.yaml_text import dump
from k8s.jobfile.spec import JobSpec
from k8s.plan import monitoring, own_program, storage
from k8s.plan.launcher import Launcher
from k8s.plan.model import Extra, Payload


def extra_objects(spec: JobSpec, launcher: Launcher, payload: Payload) -> Iterator[Extra]:
    """Yield the objects that a job file asks for, other than the job. Raises Fault(64)."""
    if spec.app_wrapper and spec.least_nodes != spec.most_nodes:
        raise config_error(
            f"appWrapper=True: its controller waits for the pods of all {spec.most_nodes} nodes, but "
            f"{spec.least_nodes} to {spec.most_nodes} may run; set nodes to a number, or leave out "
            "appWrapper"
        )
    if spec.network.isolate:
        yield _network_policy(spec)
    for suffix, claim in storage.claims(spec).items():
        yield Extra("claim", f"-{suffix}", claim.model_dump(by_alias=True))
    if spec.mount_job_file:
        text = dump([spec.model_dump(by_alias=True, exclude_unset=True)])
        yield Extra("jobfile", "-job-file", {"text": text})
    yield from _carried(spec, launcher, payload)
    if spec.tensorboard is not None:
        yield _tensorboard(spec)
    if spec.metrics is not None:
        yield Extra("podmonitor", "", spec.metrics.model_dump(by_alias=True))
        if spec.metrics.dashboard:
            text = monitoring.dashboard(spec.name, spec.namespace)
            labels = {"grafana_dashboard": "1"}  # what Grafana's sidecar looks for
            yield Extra("dashboard", "-dashboard", {"text": text, "labels": labels})
        if spec.metrics.alerts:
            rules = monitoring.rules(spec.name, spec.namespace)
            yield Extra("alerts", "-alerts", {"rules": rules})
    if spec.disruption_budget:
        yield Extra("disruptionbudget", "", {"minAvailable": spec.least_nodes})


def _carried(spec: JobSpec, launcher: Launcher, payload: Payload) -> Iterator[Extra]:
    """Yield the ConfigMaps of what travels and is on no claim."""
    for one in payload.files:
        if one is payload.code and own_program.claim_of(spec, launcher):
            continue
        labels = {f"muster/{one.role}-hash": one.sha256[:10]}
        yield Extra("carried", one.suffix, {"file": one.name, "role": one.role, "labels": labels})


_DNS = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    },
    # A cache on the machine is no pod: it, and the DNS of some clouds, have link-local addresses.
    {"ipBlock": {"cidr": "169.254.0.0/16"}},
    {"ipBlock": {"cidr": "fe80::/10"}},
]


def _network_policy(spec: JobSpec) -> Extra:
    egress = [{"cidr": one.cidr, "ports": one.ports} for one in spec.network.egress]
    if ports := sorted(set(_fetches(spec).values())):
        # A NetworkPolicy has networks only, no host names.
        egress += ({"cidr": one, "ports": ports} for one in spec.network.fetch_from)
    dns = _DNS if spec.network.dns == "cluster" else None
    values: dict[str, Any] = {"egress": egress, "dns": dns, "metrics": None, "visitors": []}
    if spec.metrics is not None:
        values |= {"metrics": spec.metrics.port, "visitors": _visitors(spec.metrics.from_)}
    return Extra("networkpolicy", "", values)


def _fetches(spec: JobSpec) -> dict[str, int]:
    """Return the keys that have the pods fetch something, each with the port that it takes."""
    found = {}
    if spec.code is not None and not spec.code.travels:
        found["code.git"] = spec.code.port
    if spec.data is not None and spec.data.pull is not None:
        found["data.pull"] = 443
    return found


def _visitors(namespaces: list[str]) -> list[dict[str, Any]]:
    """Return the peers of a NetworkPolicy: every pod of the job's namespace, and of `namespaces`."""
    name = "kubernetes.io/metadata.name"  # a label that Kubernetes gives each namespace
    return [
        {"podSelector": {}},
        *({"namespaceSelector": {"matchLabels": {name: one}}} for one in namespaces),
    ]


def _tensorboard(spec: JobSpec) -> Extra:
    assert spec.tensorboard is not None  # noqa: S101  # tells mypy
    kept = spec.checkpoints
    if kept is None or kept.empty_dir is not None or kept.host_path is not None:
        raise config_error(
            "tensorboard: reads the run folder, which here only the job's pods can see; set "
            "checkpoints.pvc, checkpoints.claim or checkpoints.csi"
        )
    if spec.app_wrapper:
        raise config_error(
            "tensorboard: never ends, so an AppWrapper that contains it would never end; leave out one "
            "of tensorboard and appWrapper"
        )
    volume = storage.volume_source(spec, kept, "checkpoints")
    component = {"app.kubernetes.io/component": "tensorboard"}
    selector = {"app.kubernetes.io/instance": spec.name, **component}
    values = spec.tensorboard.model_dump() | {"volume": volume, "selector": selector}
    values["visitors"] = _visitors(spec.tensorboard.from_) if spec.network.isolate else None
    return Extra("tensorboard", "-tensorboard", values | {"labels": component})


def warnings(spec: JobSpec) -> Iterator[str]:
    """Yield warnings about these objects."""
    if not spec.network.isolate:
        yield (
            "network.isolate: false, so every pod that reaches the job's pods reaches the ports of "
            "gloo, NCCL and torch's store, which have no authentication"
        )
    fetches = _fetches(spec)
    if spec.network.isolate and not spec.network.egress:
        reached = ", ".join(["each other", "DNS", *fetches])
        yield (
            f"network: the pods can connect only to {reached}; if the task downloads anything, add the "
            "network to network.egress"
        )
    if spec.network.isolate and fetches and "fetch_from" not in spec.network.model_fields_set:
        ports = " and ".join(str(port) for port in sorted(set(fetches.values())))
        yield (
            f"network.fetchFrom: not set, so the pods can connect to every address at port {ports}, "
            f"even while they train; set it to the networks of {' and '.join(fetches)}"
        )
    if spec.app_wrapper:
        yield (
            "appWrapper: its controller ends the job if a pod has failed for 24 h, since launcher job "
            "keeps it, or is missing later than 24 h after the start; with the annotation "
            "workload.codeflare.dev.appwrapper/retryLimit it makes the job again"
        )
        yield (
            "appWrapper: its controller needs more rights than its own role has, see k8s/SECURITY.md"
        )
    if spec.nccl.model_fields_set and not spec.resources.gpu:
        yield "nccl: ignored, because there is no GPU"
    if spec.disruption_budget:
        is_elastic = spec.least_nodes < spec.most_nodes
        when = f"while only {spec.least_nodes} run" if is_elastic else "until the job has ended"
        yield f"disruptionBudget: draining a machine waits {when}"
