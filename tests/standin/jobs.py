"""The stand-in's controller of batch/v1 Jobs, after pkg/controller/job of Kubernetes 1.34.

Indexed completions, podFailurePolicy, backoffLimit, backoffLimitPerIndex with maxFailedIndexes,
successPolicy by count, suspend, scaling, activeDeadlineSeconds, ttlSecondsAfterFinished, and the
back-off before a failed pod is replaced. Left out: jobs that are not Indexed, managedBy, and
podReplacementPolicy other than what a podFailurePolicy requires.
"""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.standin.failures import (
    Record,
    all_failures_of,
    end_of,
    failures_of,
    judge,
    passed,
)
from tests.standin.job_pods import FINALIZER, index_of, numbers, pod_of, since_epoch, text_of
from tests.standin.store import (
    Object,
    Refusal,
    Store,
    finished,
    is_true,
    now,
    path_of,
    with_condition,
)

_records: dict[str, Record] = {}  # of each Job's failures


def sync(store: Store) -> None:
    """Bring every Job one step further."""
    known = set()
    for job in store.all("batch/v1", "Job"):
        known.add(job["metadata"]["uid"])
        pods = store.owned(job, "v1", "Pod")
        if end := is_true(job, "Complete") or is_true(job, "Failed"):
            for pod in pods:
                _release(store, pod)
            kept = job["spec"].get("ttlSecondsAfterFinished")
            if kept is not None and time.time() >= since_epoch(end["lastTransitionTime"]) + kept:
                store.delete(job)
        else:
            _sync(_look(store, _defaulted(store, job), pods))
    for pod in store.all("v1", "Pod"):  # orphans
        owner: Object = next(iter(pod["metadata"].get("ownerReferences", [])), {})
        if owner.get("kind") == "Job" and owner["uid"] not in known:
            _release(store, pod)


@dataclass
class _Seen:
    """A Job and its pods: those that run, those that have failed anew, and what is counted already.

    `last` is the last failed pod of each index, which stays until another takes its place; `out` are
    the indexes that have failed for good.
    """

    store: Store
    job: Object
    status: Object
    pods: list[Object]
    active: list[Object]
    failed: list[Object]
    new_succeeded: list[Object]
    succeeded: set[int]
    last: dict[int, Object]
    out: set[int]

    @property
    def spec(self) -> Object:
        spec: Object = self.job["spec"]
        return spec

    @property
    def per_index(self) -> bool:
        return "backoffLimitPerIndex" in self.spec


def _look(store: Store, job: Object, pods: list[Object]) -> _Seen:
    spec, status = job["spec"], copy.deepcopy(job.get("status", {}))
    new = [pod for pod in pods if FINALIZER in pod["metadata"].get("finalizers", [])]
    failed = [pod for pod in new if pod["status"]["phase"] == "Failed"]
    succeeded = {index_of(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
    out, last = numbers(status.get("failedIndexes", "")), dict[int, Object]()
    if "backoffLimitPerIndex" in spec:
        last = {index_of(pod): pod for pod in sorted(failed, key=all_failures_of)}
        limit = spec["backoffLimitPerIndex"]
        out |= {
            index
            for index, pod in last.items()
            if judge(spec, pod)[0] == "FailIndex" or failures_of(spec, pod) > limit
        }
    return _Seen(
        store=store,
        job=job,
        status=status,
        pods=pods,
        active=[p for p in pods if not finished(p) and "deletionTimestamp" not in p["metadata"]],
        failed=failed,
        new_succeeded=[pod for pod in new if pod["status"]["phase"] == "Succeeded"],
        succeeded=succeeded | numbers(status.get("completedIndexes", "")),
        last=last,
        out=out,
    )


def _defaulted(store: Store, job: Object) -> Object:
    """Give a new Job what the API server gives it: the labels by which its pods are found."""
    if "selector" in job["spec"]:
        return job
    spec = copy.deepcopy(job["spec"])
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    own = {f"{prefix}controller-uid": uid for prefix in ("", "batch.kubernetes.io/")}
    own |= {f"{prefix}job-name": name for prefix in ("", "batch.kubernetes.io/")}
    metadata = spec["template"].setdefault("metadata", {})
    metadata["labels"] = metadata.get("labels", {}) | own
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    spec.setdefault("suspend", False)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    assert spec.get("completionMode") == "Indexed", "the stand-in knows Indexed Jobs"
    return store.change(job, spec=spec)


def _sync(seen: _Seen) -> None:
    if not seen.spec["suspend"]:
        seen.status.setdefault("startTime", now())
    ended = next(_endings(seen), None)
    if ended is not None:
        for pod in seen.active:
            seen.store.delete(pod)
        seen.status["active"] = 0
    elif seen.spec["suspend"]:
        for pod in seen.active:
            _release(seen.store, pod)
            seen.store.delete(pod)
        seen.status["active"] = 0
    else:
        seen.status["active"] = _manage(seen)
    _count(seen, ended)
    _tell(seen, ended)


def _endings(seen: _Seen) -> Iterator[tuple[str, str, str]]:
    """Yield which condition a Job now ends with, its reason and message; the first counts."""
    for kind in ("SuccessCriteriaMet", "FailureTarget"):
        if (before := is_true(seen.job, kind)) is not None:
            yield kind, before["reason"], before["message"]
    yield from (("FailureTarget", *why) for why in _failures(seen))
    for rule in seen.spec.get("successPolicy", {}).get("rules", []):
        if len(seen.succeeded) >= rule["succeededCount"]:
            yield "SuccessCriteriaMet", "SuccessPolicy", "Matched rules at index 0"
    if len(seen.succeeded) >= seen.spec["completions"]:
        words = "Reached expected number of succeeded pods"
        yield "SuccessCriteriaMet", "CompletionsReached", words


def _failures(seen: _Seen) -> Iterator[tuple[str, str]]:
    """Yield why a Job now fails: a reason and a message."""
    spec, status = seen.spec, seen.status
    judged = [judge(spec, pod) for pod in seen.failed]
    for action, words in judged:
        if action == "FailJob":
            yield "PodFailurePolicy", words
    counted = sum(action != "Ignore" for action, _ in judged)
    if status.get("failed", 0) + counted > spec["backoffLimit"]:
        words = "Job has reached the specified backoff limit"
        yield "BackoffLimitExceeded", words
    deadline = spec.get("activeDeadlineSeconds")
    if (
        deadline
        and not spec["suspend"]
        and time.time() >= since_epoch(status["startTime"]) + deadline
    ):
        words = "Job was active longer than specified deadline"
        yield "DeadlineExceeded", words
    most: int = spec["maxFailedIndexes"] if "maxFailedIndexes" in spec else spec["completions"]
    if len(seen.out) > most:
        words = "Job has exceeded the specified maximal number of failed indexes"
        yield "MaxFailedIndexesExceeded", words
    if seen.out and len(seen.out | seen.succeeded) >= spec["completions"]:
        yield "FailedIndexes", "Job has failed indexes"


def _manage(seen: _Seen) -> int:
    """Delete pods that are too many, or make those that lack; return how many are active then."""
    spec, active = seen.spec, seen.active
    over = [pod for pod in active if index_of(pod) >= spec["completions"]]
    for pod in over:
        _release(seen.store, pod)
        seen.store.delete(pod)
    if over:
        return len(active) - len(over)
    # a pod that terminates is not replaced before it has ended
    dying = [p for p in seen.pods if "deletionTimestamp" in p["metadata"] and not finished(p)]
    wanted = min(spec["completions"] - len(seen.succeeded), spec["parallelism"])
    lacking = max(0, wanted - len(active) - len(dying))
    taken = {index_of(pod) for pod in [*active, *dying]} | seen.succeeded | seen.out
    free = [index for index in range(spec["completions"]) if index not in taken][:lacking]
    if seen.per_index:
        last = seen.last
        free = [
            i for i in free if i not in last or passed(all_failures_of(last[i]), end_of(last[i]))
        ]
    else:
        uid = seen.job["metadata"]["uid"]
        record = _records[uid] = _records.get(uid, Record()).after(seen.failed, seen.new_succeeded)
        if not passed(record.count, record.at):
            return len(active)
    for index in free:
        try:
            seen.store.create(pod_of(seen.job, index, seen.last.get(index)))
        except Refusal as refusal:
            seen.store.event(seen.job, "FailedCreate", refusal.message, kind="Warning")
            return len(active)
    return len(active) + len(free)


def _count(seen: _Seen, ended: tuple[str, str, str] | None) -> None:
    """Count the pods that have ended, and let go of them."""
    spec, counted = seen.spec, seen.status.get("failed", 0)
    again = {index_of(pod) for pod in seen.active}
    kept = {
        pod["metadata"]["uid"] for index, pod in seen.last.items() if index not in again | seen.out
    }
    for pod in seen.pods:
        if FINALIZER not in pod["metadata"].get("finalizers", []):
            continue
        if ended is None and (not finished(pod) or pod["metadata"]["uid"] in kept):
            continue
        cut_off = not finished(pod) and ended is not None and ended[0] == "FailureTarget"
        if cut_off or (pod in seen.failed and judge(spec, pod)[0] != "Ignore"):
            counted += 1
        _release(seen.store, pod)
    seen.status |= {"failed": counted, "succeeded": len(seen.succeeded)}
    seen.status["completedIndexes"] = text_of(seen.succeeded)
    if seen.per_index:
        seen.status["failedIndexes"] = text_of(seen.out)


def _tell(seen: _Seen, ended: tuple[str, str, str] | None) -> None:
    """Write the status down, with the final condition once no pod runs any more."""
    spec, status = seen.spec, seen.status
    living = [pod for pod in seen.pods if not finished(pod)]
    dying = [pod for pod in living if pod not in seen.active]
    stopped = ended is not None or spec["suspend"]
    status["terminating"] = len(living if stopped else dying)
    status["ready"] = 0 if stopped else sum(bool(is_true(pod, "Ready")) for pod in seen.active)
    conditions = status.get("conditions", [])
    if ended is None:
        suspended = ("True", "JobSuspended", "Job suspended")
        resumed = ("False", "JobResumed", "Job resumed")
        state, reason, words = suspended if spec["suspend"] else resumed
        conditions = with_condition(conditions, "Suspended", reason, words, status=state)
    else:
        kind, reason, words = ended
        conditions = with_condition(conditions, kind, reason, words)
        if not status["terminating"]:
            final = "Complete" if kind == "SuccessCriteriaMet" else "Failed"
            conditions = with_condition(conditions, final, reason, words)
            if final == "Complete":
                status["completionTime"] = now()
                seen.store.event(seen.job, "Completed", "Job completed")
            else:
                seen.store.event(seen.job, reason, words, kind="Warning")
    status["conditions"] = conditions
    seen.store.change(seen.job, status=status)


def _release(store: Store, pod: Object) -> None:
    """Take our finalizer off a pod."""
    with store.lock:
        held = store.objects.get(path_of(pod), pod)
        rest = [one for one in held["metadata"].get("finalizers", []) if one != FINALIZER]
        if held["metadata"].get("finalizers", []) != rest:
            store.change(pod, metadata={**held["metadata"], "finalizers": rest})
