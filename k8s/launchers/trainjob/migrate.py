"""A TrainJob as the values of a job file, with notes about what they do not hold.

render.py --migrate trainjob.yaml

What its runtime contains is not in the TrainJob, so it is not migrated.
"""

from k8s.launchers.migrate_pod import Values, job_file, migrate_metadata, migrate_pod

_NOT_CARRIED = ("initializer", "podTemplateOverrides", "runtimePatches", "managedBy")


def migrate(job: Values) -> tuple[Values, list[str]]:
    """Return a job file's values for a TrainJob, and notes."""
    metadata, spec = job["metadata"], job["spec"]
    trainer = spec.get("trainer") or {}
    keys = ("command", "args", "env")
    container: Values = {"name": "trainer", "image": trainer.get("image")}
    container |= {key: trainer[key] for key in keys if key in trainer}
    container["resources"] = trainer.get("resourcesPerNode") or {}
    pod = migrate_pod({"spec": {"containers": [container]}}, name=metadata["name"])
    own, queue, notes = migrate_metadata(metadata, launcher="trainjob")
    procs = str(trainer.get("numProcPerNode", ""))
    values: Values = {
        **own,
        **pod.values,
        "nodes": int(trainer.get("numNodes", 1)),
        "procsPerNode": int(procs) if procs.isdecimal() else None,
        "faults": {"suspend": True} if spec.get("suspend") else {},
        "scheduling": queue,
    }
    runtime = (spec.get("runtimeRef") or {}).get("name")
    notes += [f"{key}: write what it sets in the job file" for key in _NOT_CARRIED if key in spec]
    notes.append(
        f"runtimeRef {runtime}: what it contains is not migrated, such as image and volumes"
    )
    return job_file(values), [*notes, *pod.notes]
