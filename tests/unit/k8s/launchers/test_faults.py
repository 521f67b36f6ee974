"""Every exit code on every launcher, with the rendered rules applied as its controller would."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from k8s import launchers
from tests.rendering import (
    CLUSTER,
    LAUNCHERS,
    environment_in_pod,
    everything,
    job,
    planned,
    pods,
    render,
)
from trainer.config.exits import MEANINGS, Action, Exit
from trainer.launcher.node import reported

# The words of this table: "fail" at once, "retry" counted, "free" not counted, "peer" at most once for
# all nodes.
WORDS = {
    Action.FAIL: "fail",
    Action.RETRY: "retry",
    Action.RETRY_ELSEWHERE: "retry",
    Action.RETRY_FREE: "free",
    Action.RETRY_PEER: "peer",
}
CODES = {int(c): WORDS[m.action] for c, m in MEANINGS.items() if m.action in WORDS} | {137: "retry"}


def pod_failure(job_spec: dict[str, Any], code: int | None) -> tuple[int, str] | None:
    """Return index and action of the rule that the Job controller applies; no code: a disruption."""
    name = job_spec["template"]["spec"]["containers"][0]["name"]
    for index, rule in enumerate(job_spec["podFailurePolicy"]["rules"]):
        codes = rule.get("onExitCodes")
        if codes and codes["containerName"] == name and code in codes["values"]:
            return index, str(rule["action"])
        if code is None and rule.get("onPodConditions"):
            return index, str(rule["action"])
    return None


def by_job(objects: tuple[dict[str, Any], ...], code: int | None) -> str:
    found = pod_failure(objects[-1]["spec"], code)
    return {"FailJob": "fail", "Ignore": "free"}[found[1]] if found else "retry"


def by_jobset(spec: dict[str, Any], code: int | None) -> str:
    inner = spec["replicatedJobs"][0]["template"]["spec"]
    assert inner["backoffLimit"] == 0
    found = pod_failure(inner, code)
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if found:
        assert found[1] == "FailJob"
        # The words of Kubernetes' pod_failure_policy.go, between 1.28 and 1.37.
        cause = f"Container x for pod n/p-64 failed with exit code {code}"
        cause = cause if code else "Pod n/p-64 has condition DisruptionTarget"
        reason, message = "PodFailurePolicy", f"{cause} matching FailJob rule at index {found[0]}"
    return by_failure_policy(spec, reason, message)


def by_failure_policy(spec: dict[str, Any], reason: str, message: str) -> str:
    actions = {"FailJobSet": "fail", "RestartJobSetAndIgnoreMaxRestarts": "free"}
    for rule in spec["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in patterns):
            return actions[rule["action"]]
    return "retry"


def by_volcano(objects: tuple[dict[str, Any], ...], code: int | None) -> str:
    event = "PodFailed" if code else "PodEvicted"
    for policy in objects[-1]["spec"]["policies"]:
        if event in policy.get("events", []) or (code and policy.get("exitCode") == code):
            return {"TerminateJob": "fail", "RestartJob": "retry"}[policy["action"]]
    return "nothing"


def by_operator(objects: tuple[dict[str, Any], ...], code: int | None) -> str:
    """Return what the training operator does with restartPolicy ExitCode: it decides by the range."""
    for replica in objects[-1]["spec"]["pytorchReplicaSpecs"].values():
        assert replica["restartPolicy"] == "ExitCode"
        environment = environment_in_pod(replica["template"])
    offset = int(environment["MUSTER_RETRY_EXIT_OFFSET"])
    if code is None:
        return "retry"  # a missing pod is made again
    ended = reported(Exit(code), offset) if code in set(Exit) else code
    assert 0 < ended < 256
    return "retry" if ended >= 128 else "fail"


APPLIED: dict[str, Callable[[tuple[dict[str, Any], ...], int | None], str]] = {
    "job": by_job,
    "jobset": lambda objects, code: by_jobset(objects[-1]["spec"], code),
    "trainjob": lambda objects, code: by_jobset(objects[-2]["spec"]["template"]["spec"], code),
    "volcano": by_volcano,
    "pytorchjob": by_operator,
}


@pytest.mark.parametrize("launcher", sorted(APPLIED))
@pytest.mark.parametrize("code", [*CODES, None])
def test_every_code_is_answered_as_the_table_says(launcher: str, code: int | None) -> None:
    expected = "free" if code is None else CODES[code]
    if launcher in ("volcano", "pytorchjob") and expected == "free":
        expected = "retry"  # the controller decides whether it counts; the plan says so in words
    if expected == "peer":
        # A Job counts pods, but not these; other kinds restart all pods at once and count that.
        expected = "free" if launcher == "job" else "retry"
    for values in (job(), everything(launcher)):
        assert APPLIED[launcher](render(values, launcher).objects, code) == expected


def test_every_launcher_is_here_or_has_no_controller() -> None:
    assert set(APPLIED) == set(CLUSTER)
    for name in set(LAUNCHERS) - set(CLUSTER):
        found = launchers.find(name)
        assert found.restarts(planned(job(), name)) == "none; run the job again and it resumes"


def test_a_jobset_past_its_deadline_is_not_begun_again() -> None:
    spec = render(job(faults={"deadline": 60}), "jobset").objects[0]["spec"]
    inner = spec["replicatedJobs"][0]["template"]["spec"]
    assert inner["activeDeadlineSeconds"] == 60
    assert by_failure_policy(spec, "DeadlineExceeded", "Job was active longer") == "fail"


def test_a_trainjob_has_its_deadline_itself() -> None:
    runtime, made = render(job(faults={"deadline": 60}), "trainjob").objects
    assert made["spec"]["activeDeadlineSeconds"] == 60
    assert "activeDeadlineSeconds" not in str(runtime)


@pytest.mark.parametrize("restarts", [0, 1, 5])
def test_the_number_of_restarts(restarts: int) -> None:
    values = job(faults={"maxRestarts": restarts})
    spec = render(values, "job").objects[1]["spec"]
    # Per index: the back-off before a pod is replaced then counts only failures of its index.
    assert (spec["backoffLimit"], spec["backoffLimitPerIndex"]) == (restarts, restarts)
    assert render(values, "jobset").objects[0]["spec"]["failurePolicy"]["maxRestarts"] == restarts
    # Volcano gives up when it has counted maxRetry restarts, before the last one.
    assert render(values, "volcano").objects[0]["spec"]["maxRetry"] - 1 == restarts


@pytest.mark.parametrize("launcher", [name for name in CLUSTER if name != "volcano"])
def test_a_suspended_job_waits(launcher: str) -> None:
    def held(values: dict[str, Any]) -> Any:
        spec = render(values, launcher).objects[-1]["spec"]
        return spec.get("runPolicy", spec).get("suspend")

    assert held(job(faults={"suspend": True})) is True
    assert held(job()) is None


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_stuck_node_is_found_by_a_probe_that_waits_longer_than_any_bound(launcher: str) -> None:
    (pod, *_) = pods(render(job(nodes=2), launcher))
    trainer = pod["spec"]["containers"][0]
    assert trainer["livenessProbe"]["exec"]["command"] == ["python", "-m", "trainer.health"]
    assert environment_in_pod(pod)["TRAINER_HEALTH"].startswith("/tmp/")
    # Peers look for this pod in DNS, which may have it only once it is ready.
    assert not trainer.keys() & {"startupProbe", "readinessProbe"}
    (pod, *_) = pods(render(job(nodes=2, trainer={"healthTimeout": 0}), launcher))
    assert "livenessProbe" not in pod["spec"]["containers"][0]
    (pod, *_) = pods(render(job(nodes=2, trainer={"health": "/dev/shm/h"}), launcher))
    names = [entry["name"] for entry in pod["spec"]["containers"][0]["env"]]
    assert names.count("TRAINER_HEALTH") == 1
    assert environment_in_pod(pod)["TRAINER_HEALTH"] == "/dev/shm/h"
