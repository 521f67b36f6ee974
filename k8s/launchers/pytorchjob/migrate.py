"""A PyTorchJob as the values of a job file, with notes about what they do not hold.

render.py --migrate pytorchjob.yaml > job.yaml

Fields with a key of their own go there, other fields of the pod into podPatch.
"""

from k8s.launchers.migrate_pod import (
    Values,
    job_file,
    migrate_metadata,
    migrate_pod,
    note_difference,
)


def migrate(job: Values) -> tuple[Values, list[str]]:
    """Return a job file's values for a PyTorchJob, and notes."""
    spec, metadata = job["spec"], job["metadata"]
    replicas = spec["pytorchReplicaSpecs"]
    first = replicas.get("Master") or replicas["Worker"]
    own, queue, label_notes = migrate_metadata(metadata, launcher="pytorchjob")
    pod = migrate_pod(first["template"], name=metadata["name"], container="pytorch")
    faults, gang = _faults(spec.get("runPolicy") or {})
    procs = str(spec.get("nprocPerNode", (spec.get("elasticPolicy") or {}).get("nProcPerNode", "")))
    values: Values = {
        **own,
        "nodes": _nodes(spec, replicas),
        **pod.values,
        "faults": faults | pod.values.get("faults", {}),
        "procsPerNode": int(procs) if procs.isdecimal() else None,
        "scheduling": queue | pod.scheduling | gang,
    }
    notes: list[str] = []
    worker = replicas.get("Worker") or {}
    if worker is not first and worker.get("replicas"):
        notes += note_difference(first["template"], worker["template"], names=("Master", "Worker"))
    notes += [*label_notes, *pod.notes]
    if procs in ("auto", "cpu") and not values["resources"].get("gpu"):
        notes.append(
            f"nprocPerNode={procs!r}: means a rank per core of the machine; muster starts one rank "
            "per pod unless you set procsPerNode"
        )
    restart = first.get("restartPolicy", "OnFailure")
    if restart != "ExitCode":
        notes.append(
            f"restartPolicy={restart!r}: the exit code decides what is restarted, see README"
        )
    return job_file(values), notes


def _nodes(spec: Values, replicas: Values) -> int | Values:
    elastic = spec.get("elasticPolicy") or {}
    count = sum(int(one.get("replicas", 1)) for one in replicas.values() if one)
    if "minReplicas" in elastic or "maxReplicas" in elastic:
        low = int(elastic.get("minReplicas", 1))
        return {"min": low, "max": int(elastic.get("maxReplicas", max(count, low)))}
    return count


def _faults(policy: Values) -> tuple[Values, Values]:
    """Return the job file's `faults`, and the keys of its `scheduling` that a runPolicy sets."""
    group = policy.get("schedulingPolicy") or {}
    scheduling: Values = {}
    if group.get("minAvailable"):
        scheduling["gang"] = True
        if group.get("scheduleTimeoutSeconds"):
            scheduling["gangTimeout"] = group["scheduleTimeoutSeconds"]
    if group.get("priorityClass"):
        scheduling["priorityClass"] = group["priorityClass"]
    keys = {
        "backoffLimit": "maxRestarts",
        "activeDeadlineSeconds": "deadline",
        "ttlSecondsAfterFinished": "ttl",
        "cleanPodPolicy": "cleanPodPolicy",
        "suspend": "suspend",
    }
    faults = {name: policy[key] for key, name in keys.items() if policy.get(key) is not None}
    return faults, scheduling
