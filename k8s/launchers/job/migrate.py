"""A Job as the values of a job file, with notes about what they do not hold.

render.py --migrate job.yaml
"""

from k8s.launchers.migrate_pod import Values, job_file, migrate_metadata, migrate_pod


def migrate(job: Values) -> tuple[Values, list[str]]:
    """Return a job file's values for a Job, and notes."""
    metadata = job["metadata"]
    values, notes = migrate_job_spec(job["spec"], name=metadata["name"])
    own, queue, more = migrate_metadata(metadata, launcher="job")
    values["scheduling"] = queue | values["scheduling"]
    return job_file(own | values), [*more, *notes]


def migrate_job_spec(spec: Values, *, name: str) -> tuple[Values, list[str]]:
    """Return a job file's values for the spec of a Job, which a JobSet has too, and notes."""
    nodes = int(spec.get("parallelism", 1))
    completions = int(spec.get("completions", nodes))
    if completions != nodes:
        raise ValueError(
            f"completions={completions} and parallelism={nodes}: must be equal, "
            "because all nodes run at once"
        )
    pod = migrate_pod(spec["template"], name=name)
    keys = {
        "backoffLimit": "maxRestarts",
        "activeDeadlineSeconds": "deadline",
        "ttlSecondsAfterFinished": "ttl",
        "suspend": "suspend",
    }
    faults = {own: spec[key] for key, own in keys.items() if spec.get(key) is not None}
    notes = [
        f"{key}: the exit code decides what is restarted, see README"
        for key in ("podFailurePolicy", "backoffLimitPerIndex", "successPolicy")
        if key in spec
    ]
    values = {
        **pod.values,
        "nodes": nodes,
        "faults": faults | pod.values.get("faults", {}),
        "scheduling": pod.scheduling,
    }
    return values, [*pod.notes, *notes]
