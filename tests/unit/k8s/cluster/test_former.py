"""Pods and events that no longer count: of a deleted job of the name, or of an earlier attempt."""

import json

from tests.cluster_objects import FAILED, JOBSET, STEP, USAGE, Cluster, Run, ended, jobset, pod


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


def test_of_a_node_that_was_started_again_the_newest_pod_counts(run: Run, cluster: Cluster) -> None:
    """A Job keeps its failed pods: here of an unfit machine, then of an error of the program."""
    server, config = cluster
    for minute, (name, status) in enumerate([("b", ended(71)), ("a", {"phase": "Running"})]):
        newest = pod(f"digits-0-{name}", 0, **status)
        newest["metadata"]["creationTimestamp"] = f"2026-01-02T00:0{minute}:00Z"
        server.put("v1", "Pod", newest)
        server.logs[f"digits-0-{name}"] = f"{USAGE}\n{STEP}\n"
    server.put(*JOBSET, jobset())
    rows = json.loads(run(config, "top", "digits", "--json")[1])
    assert [(one["rank"], one["pod"]) for one in rows] == [(0, "digits-0-a"), (1, "digits-0-a")]
    server.put("v1", "Pod", newest | {"status": ended(70)})
    server.put(*JOBSET, jobset(**FAILED))
    assert run(config, "wait", "digits")[0] == 70
    assert len(json.loads(run(config, "status", "digits", "--json")[1])["pods"]) == 2
