"""Pods and events of a deleted job, while the next job of its name exists."""

import json

from tests.cluster_objects import JOBSET, STEP, Cluster, Run, jobset, pod


def test_what_a_former_job_of_the_name_left_is_not_taken_for_its_own(
    run: Run, cluster: Cluster
) -> None:
    """After delete and submit, the pods of the old job remain until they have ended."""
    server, config = cluster
    now, before = "2026-01-02T00:00:00Z", "2026-01-01T23:59:59Z"
    again = jobset()
    again["metadata"]["creationTimestamp"] = now
    server.put(*JOBSET, again)
    for name, made in (("digits-node-0-0-new", now), ("digits-node-0-0-old", before)):
        one = pod(name, 0, phase="Running")
        one["metadata"] |= {"creationTimestamp": made}
        server.put("v1", "Pod", one)
        server.logs[name] = f"{STEP}\n" if made == before else ""
    for number, (field, moment) in enumerate(
        [("lastTimestamp", before), ("lastTimestamp", now), ("eventTime", f"{now[:-1]}.250000Z")]
    ):
        event = {
            "metadata": {"name": f"digits.{number}"},
            "type": "Warning",
            "reason": f"Seen{number}",
            "message": "so",
            "involvedObject": {"name": "digits"},
            field: moment,
        }
        server.put("v1", "Event", event)
    code, out, _ = run(config, "status", "digits", "--json")
    shown = json.loads(out)
    assert code == 0
    assert [one["name"] for one in shown["pods"]] == ["digits-node-0-0-new"]
    assert shown["progress"] is None
    assert sorted(shown["warnings"]) == ["digits: Seen1: so", "digits: Seen2: so"]
