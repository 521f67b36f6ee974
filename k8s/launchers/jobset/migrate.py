"""A JobSet as the values of a job file, with notes about what they do not hold.

render.py --migrate jobset.yaml
"""

from k8s.launchers.job.migrate import migrate_job_spec
from k8s.launchers.migrate_pod import Values, job_file, migrate_metadata, note_difference


def migrate(job: Values) -> tuple[Values, list[str]]:
    """Return a job file's values for a JobSet, and notes."""
    metadata, spec = job["metadata"], job["spec"]
    groups = spec["replicatedJobs"]
    values, notes = migrate_job_spec(groups[0]["template"]["spec"], name=metadata["name"])
    first = groups[0]["template"]["spec"]["template"]
    for group in groups[1:]:  # as of a leader and its workers
        other = group["template"]["spec"]["template"]
        notes += note_difference(first, other, names=(groups[0]["name"], group["name"]))
    nodes = [
        int(group.get("replicas", 1)) * int(group["template"]["spec"].get("parallelism", 1))
        for group in groups
    ]
    own, queue, more = migrate_metadata(metadata, launcher="jobset")
    restarts = (spec.get("failurePolicy") or {}).get("maxRestarts")
    faults = values["faults"]
    faults |= {"maxRestarts": restarts} if restarts is not None else {}
    faults |= {"ttl": spec["ttlSecondsAfterFinished"]} if "ttlSecondsAfterFinished" in spec else {}
    faults |= {"suspend": True} if spec.get("suspend") else {}
    values |= {"nodes": sum(nodes), "scheduling": queue | values["scheduling"]}
    return job_file(own | values), [*more, *notes]
