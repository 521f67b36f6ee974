"""How the stand-in's Jobs judge a failed pod, and how long they wait before they replace it.

The wait is 10 s, doubled with every failure since a pod last succeeded, at most 10 min: of the whole
Job, or with backoffLimitPerIndex of each index. A failure that the policy ignores is not counted against
a limit, but makes the wait longer all the same: newBackoffRecord gets every new failed pod, and an
index's annotation of ignored failures is added to that of the others.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.standin.store import Object, is_true

FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
_FIRST, _LONGEST = 10.0, 600.0


def judge(spec: Object, pod: Object) -> tuple[str, str]:
    """Return what a Job's podFailurePolicy says of a failed pod, by the first rule that fits; why."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
        action = rule["action"]
        tail = f"matching {action} rule at index {number}"
        for container, code in _codes(rule.get("onExitCodes"), pod):
            words = f"Container {container} for pod {name} failed with exit code {code} {tail}"
            return action, words
        for wanted in rule.get("onPodConditions", []):
            if is_true(pod, wanted["type"]):
                return action, f"Pod {name} has condition {wanted['type']} {tail}"
    return "Count", ""


def _codes(rule: Any, pod: Object) -> Iterator[tuple[str, int]]:
    """Yield the containers that a rule fits, and the codes they ended with."""
    for told in pod["status"].get("containerStatuses", []) if rule else []:
        end = told["state"].get("terminated")
        if (
            not end
            or not end["exitCode"]
            or rule.get("containerName", told["name"]) != told["name"]
        ):
            continue
        if (end["exitCode"] in rule["values"]) == (rule["operator"] == "In"):
            yield told["name"], end["exitCode"]


def passed(failures: int, at: float) -> bool:
    """Return whether the wait after so many failures, the last at a time, is over."""
    return not failures or time.time() > at + min(_LONGEST, _FIRST * 2 ** (failures - 1))


@dataclass(frozen=True)
class Record:
    """How many pods of a Job have failed since one succeeded, and when the last did."""

    count: int = 0
    at: float = 0.0

    def after(self, failed: list[Object], succeeded: list[Object]) -> "Record":
        """Return what it is with pods that have ended anew; a success forgets what failed before it."""
        ends = [end_of(pod) for pod in failed]
        if succeeded:
            last = max(end_of(pod) for pod in succeeded)
            ends = [end for end in ends if end > last]
            return Record(len(ends), max(ends, default=0.0))
        return Record(self.count + len(ends), max([self.at, *ends]))


def end_of(pod: Object) -> float:
    """Return when a pod's container ended."""
    (told,) = pod["status"]["containerStatuses"]
    return datetime.fromisoformat(told["state"]["terminated"]["finishedAt"]).timestamp()


def failures_of(spec: Object, pod: Object) -> int:
    """Return how many failures of a failed pod's index count, its own among them."""
    before = int(pod["metadata"]["annotations"][FAILURES])
    return before + (judge(spec, pod)[0] != "Ignore")


def all_failures_of(pod: Object) -> int:
    """Return how often a failed pod's index has failed, whether that counts or not."""
    annotations = pod["metadata"]["annotations"]
    return int(annotations[FAILURES]) + int(annotations[IGNORED]) + 1
