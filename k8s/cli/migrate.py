"""A PyTorchJob v1 as the job file that it amounts to, with a note of what could not be carried.

    render.py --migrate pytorchjob.yaml > job.yaml

What has a key of its own goes there, any other field of the pod into podPatch. The result is what
`render.py` accepts, so it is checked by rendering it.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from k8s import launchers
from k8s.base.yaml_text import dump, read
from k8s.cli import migrate_pod
from k8s.jobfile import validate
from k8s.plan import make
from k8s.render import manifests
from trainer.config.exits import Exit, Fault

_OWN_LABELS = {
    "kueue.x-k8s.io/queue-name": "queue",
    "kueue.x-k8s.io/priority-class": "priority",
}


def show(path: Path) -> None:
    """Print the job file of a manifest, and to standard error what it lacks. Raises Fault(64)."""
    values, notes = migrate(_read(path))
    launcher = launchers.find(values["launcher"])
    try:
        manifests.render(make.make(validate.validate(values), launcher), launcher)
    except Fault as fault:
        notes.append(f"to be put right by hand: {fault}")
    notes = [" ".join(note.split()) for note in notes]
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"# From {path.name}. What is not carried:")
    print("\n".join(f"#   {note}" for note in notes) or "#   nothing")
    print(dump([values]), end="")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read(path.read_bytes())
    except OSError as error:
        raise Fault(Exit.CONFIG, f"--migrate {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise Fault(Exit.CONFIG, f"--migrate {path}: not YAML: {why}") from None
    jobs = [one for one in found if isinstance(one, dict) and one.get("kind") == "PyTorchJob"]
    if len(jobs) != 1 or jobs[0].get("apiVersion") != "kubeflow.org/v1":
        raise Fault(
            Exit.CONFIG,
            f"--migrate {path}: holds {len(jobs)} PyTorchJobs of kubeflow.org/v1; must be one",
        )
    return dict(jobs[0])


def migrate(job: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a job file's values for a PyTorchJob, and notes of what they do not hold."""
    notes: list[str] = []
    try:
        return _migrate(job, notes), notes
    except KeyError as error:
        raise Fault(Exit.CONFIG, f"--migrate: not a PyTorchJob: {error} is missing") from None
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        why = " ".join(str(error).split())
        raise Fault(Exit.CONFIG, f"--migrate: not a PyTorchJob: {why}") from None


def _migrate(job: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    spec, metadata = job["spec"], job["metadata"]
    replicas = spec["pytorchReplicaSpecs"]
    first = replicas.get("Master") or replicas["Worker"]
    others = replicas.get("Worker") or {}
    if first is not others and others.get("replicas"):
        worker = others["template"]["spec"]
        if worker != first["template"]["spec"]:
            notes.append(
                "Worker: its pod is another than Master's; the pods here are like Master's"
            )
    values: dict[str, Any] = {"name": metadata["name"], "launcher": "pytorchjob"}
    if "namespace" in metadata:
        values["namespace"] = metadata["namespace"]
    values["nodes"] = _nodes(spec, replicas)
    scheduling = _labels(metadata.get("labels") or {}, values, notes)
    if metadata.get("annotations"):
        values["annotations"] = metadata["annotations"]
    migrate_pod.carry(first["template"], values, scheduling, notes)
    procs = str(spec.get("nprocPerNode", (spec.get("elasticPolicy") or {}).get("nProcPerNode", "")))
    if procs.isdecimal():
        values["procsPerNode"] = int(procs)
    elif procs in ("auto", "cpu") and not values.get("resources", {}).get("gpu"):
        notes.append(
            f"nprocPerNode={procs!r}: a rank per core of the machine; here one rank per pod, set "
            "procsPerNode"
        )
    values["faults"] = _faults(spec.get("runPolicy") or {}, scheduling) | values.get("faults", {})
    if first.get("restartPolicy", "OnFailure") != "ExitCode":
        notes.append(
            f"restartPolicy={first.get('restartPolicy', 'OnFailure')!r}: here the exit code decides, "
            "see README"
        )
    if scheduling:
        values["scheduling"] = scheduling
    return values


def _nodes(spec: dict[str, Any], replicas: dict[str, Any]) -> Any:
    elastic = spec.get("elasticPolicy") or {}
    count = sum(int(one.get("replicas", 1)) for one in replicas.values() if one)
    if "minReplicas" in elastic or "maxReplicas" in elastic:
        low = int(elastic.get("minReplicas", 1))
        return {"min": low, "max": int(elastic.get("maxReplicas", max(count, low)))}
    return count


def _labels(labels: dict[str, str], values: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Put labels in their places and return the start of `scheduling`."""
    scheduling = {_OWN_LABELS[key]: labels[key] for key in _OWN_LABELS if key in labels}
    if "priority" in scheduling and "queue" not in scheduling:
        notes.append("label kueue.x-k8s.io/priority-class: without a queue it says nothing")
        del scheduling["priority"]
    kept = {}
    for key, text in labels.items():
        domain = key.rpartition("/")[0]
        if domain == "app.kubernetes.io" or domain.endswith("kubeflow.org"):
            notes.append(f"label {key}={text!r}: muster or the controller sets it")
        elif key not in _OWN_LABELS:
            kept[key] = text
    if kept:
        values["labels"] = kept
    return scheduling


def _faults(policy: dict[str, Any], scheduling: dict[str, Any]) -> dict[str, Any]:
    gang = policy.get("schedulingPolicy") or {}
    if gang.get("minAvailable"):
        scheduling["gang"] = True
        if gang.get("scheduleTimeoutSeconds"):
            scheduling["gangTimeout"] = gang["scheduleTimeoutSeconds"]
    if gang.get("priorityClass"):
        scheduling["priorityClass"] = gang["priorityClass"]
    keys = {
        "backoffLimit": "maxRestarts",
        "activeDeadlineSeconds": "deadline",
        "ttlSecondsAfterFinished": "ttl",
        "cleanPodPolicy": "cleanPodPolicy",
        "suspend": "suspend",
    }
    return {name: policy[key] for key, name in keys.items() if policy.get(key) is not None}
