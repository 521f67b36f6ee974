"""Submit a rendered job to a cluster: all of its objects, or none.

file = Path("build/digits-ddp/jobset.yaml")
submit(cluster, file, read_manifests(file), force=False, replace=False)
"""

import contextlib
import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s.base.errors import config_error
from k8s.base.yaml_text import read, read_text
from k8s.cluster import jobs, state, wrapped_job
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Object
from k8s.cluster.jobs import Job
from k8s.cluster.state import mappings
from k8s.cluster.submit import copy_code, rendezvous_secret
from k8s.cluster.submit.copy_code import Folder
from k8s.plan.job_kind import JobKind

_GONE = 60.0  # seconds after the pods' grace period for a deleted job to go

log = logging.getLogger("k8s")


def read_manifests(manifest: Path) -> list[Object]:
    """Return the objects of a file, or of standard input for `-`. Raises Fault(64)."""
    label = str(manifest)
    try:
        text = (
            sys.stdin.buffer.read().decode() if label == "-" else read_text(manifest, label=label)
        )
    except UnicodeDecodeError as error:
        raise config_error(f"-: not UTF-8 at byte {error.start}") from None
    found = read(text, label=label)
    if not all(map(_is_object, found)):
        raise config_error(f"{manifest}: not a manifest; render.py makes one from a job file")
    return found


def _is_object(document: Any) -> bool:
    match document:
        case {"apiVersion": str(), "kind": str(), "metadata": {"name": str()}}:
            return True
    return False


@dataclass(frozen=True)
class Submission:
    """A job to submit; `root` is the manifest of the job or of its AppWrapper.

    `before` is the existing job of this name, `folder` what `apply` copies to a claim, if any.
    """

    file: Path
    name: str
    manifests: list[Object]
    root: Object
    labels: dict[str, str]
    before: Job | None
    folder: Folder | None

    @property
    def is_being_deleted(self) -> bool:
        return self.before is not None and state.is_being_deleted(self.before.root_object)

    @property
    def has_ended(self) -> bool:
        ended = self.before is not None and self.before.state.phase.ended
        return ended and not self.is_being_deleted


def submit(
    cluster: Cluster, file: Path, manifests: list[Object], *, force: bool, replace: bool
) -> str:
    """Apply all of a file's manifests, or none if the server refuses one; return the job's name.

    Raises Fault(64) if a job of this name has ended, because nothing would run. Raises it also if one
    has another launcher, because the pods and companions of both would have the same labels.
    """
    one = find(cluster, file, manifests)
    if replace or one.is_being_deleted:
        one = make_room(cluster, one)
    if one.before is not None and one.has_ended:
        raise config_error(
            f"job {one.name} already exists and has ended ({one.before.state.phase}); run "
            f"`python -m k8s delete {one.name}` first, or submit with --replace"
        )
    try_out(cluster, one, force=force)
    apply(cluster, one, force=force)
    return one.name


def find(cluster: Cluster, file: Path, manifests: list[Object]) -> Submission:
    """Return the job in a file's manifests, with the existing job of its name. Raises Fault(64)."""
    kind, job = state.find_job_manifest(wrapped_job.with_contents(manifests))
    for manifest in manifests:
        objects.resource(cluster, manifest["apiVersion"], manifest["kind"])
        own = manifest["metadata"].get("namespace") or cluster.namespace
        if own != cluster.namespace:
            raise config_error(
                f"{manifest['kind']} {manifest['metadata']['name']} is for namespace {own}, not "
                f"{cluster.namespace}; use --namespace {own}"
            )
    name: str = job["metadata"]["name"]
    root = next((one for one in manifests if wrapped_job.is_wrapper(one)), job)
    found = objects.get(cluster, root["apiVersion"], root["kind"], name)
    if found is not None and not jobs.is_managed(found):
        raise config_error(
            f"{cluster.where}: {root['kind']} {name} exists and is not managed by muster; "
            "choose another name"
        )
    _check_other_launchers(cluster, kind, name, root)
    before = jobs.job_from(cluster, found) if found is not None else None
    labels = job["metadata"].get("labels", {})
    if folder := copy_code.find(manifests):
        copy_code.read(folder, file)
    return Submission(file, name, manifests, root, labels, before, folder)


def _check_other_launchers(cluster: Cluster, kind: JobKind, name: str, root: Object) -> None:
    """Refuse a job whose name one on another launcher has. Raises Fault(64)."""
    for other in jobs.served_kinds(cluster):
        with contextlib.suppress(Forbidden):
            # a user of one launcher need not have rights on the others
            found = jobs.find_job(cluster, other, name)
            if found and (other != kind or found.root_object["kind"] != root["kind"]):
                bare = ", without an AppWrapper" if other == kind and not found.wrapper else ""
                raise config_error(
                    f"job {name} already exists, on launcher {other.launcher}{bare}; delete it "
                    "first, or choose another name"
                )


def make_room(cluster: Cluster, one: Submission) -> Submission:
    """Delete the existing job of this name, if any, and wait until it is gone. Raises Fault(69).

    `apply` waits for its pods.
    """
    if (job := one.before) is None:
        return one
    pods = jobs.pod_objects(cluster, job)
    log.info("deleting job %s and its %d pods first", one.name, len(pods))
    jobs.delete(cluster, job)
    root = job.root_object

    def is_there() -> object:
        return objects.get(cluster, root["apiVersion"], root["kind"], one.name)

    objects.wait_until_gone(cluster, is_there, what=f"job {one.name}", seconds=_seconds(pods))
    return dataclasses.replace(one, before=None)


def _seconds(pods: list[Object]) -> float:
    """Return how long a deleted job's pods may take to go."""
    graces = [pod["spec"].get("terminationGracePeriodSeconds", 30) for pod in pods]
    return max(graces, default=0) + _GONE


def _wait_for_former_pods(cluster: Cluster, one: Submission) -> None:
    """Wait until the pods of a deleted job of this name have ended.

    They save to the same run folder, and a new job could reach them. Kubernetes deletes them a little
    after the job. Raises Fault(69).
    """

    def running() -> list[Object]:
        return jobs.running_pods(cluster, one.name)

    with contextlib.suppress(Forbidden):  # submitting needs no right on pods
        if pods := running():
            what = f"one of {len(pods)} pods of an earlier job {one.name}"
            log.info("waiting for %d pods of an earlier job %s", len(pods), one.name)
            objects.wait_until_gone(cluster, running, what=what, seconds=_seconds(pods))


def try_out(cluster: Cluster, one: Submission, *, force: bool) -> None:
    """Let the server check every object in a dry run. Raises Fault(64)."""
    for manifest in wrapped_job.with_contents(one.manifests):
        tried = objects.apply(cluster, manifest, dry_run=True, force=force)
        if one.before is not None and (pods := _pods(tried)):
            where = f"metadata.name={manifest['metadata']['name']}"
            before = objects.find(cluster, manifest["apiVersion"], manifest["kind"], fields=where)
            # A pod that restarts would differ from the others. Most kinds refuse this themselves.
            if before and _pods(before[0]) != pods:
                raise config_error(
                    f"job {one.name} is {one.before.state.phase} with other settings or code; submit "
                    "with --replace, which ends it first"
                )


def _pods(manifest: Object) -> list[Object]:
    """Return the trainer's pods' specs in a manifest."""
    of_trainer = (
        manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "trainer"
    )
    every = mappings(manifest.get("spec")) if of_trainer else ()
    return [found for found in every if "containers" in found]


def apply(cluster: Cluster, one: Submission, *, force: bool) -> None:
    """Copy the folder to where the pods read it, and apply every object. Call `try_out` first.

    The pods of a deleted job of this name end first.
    """
    if one.before is None:
        _wait_for_former_pods(cluster, one)
    if one.folder is not None:
        copy_code.copy(cluster, one.folder, one.file)
    # Running pods keep the secret that they started with.
    new = one.before is None
    secret = rendezvous_secret.make(cluster, one.manifests, labels=one.labels) if new else None
    for manifest in one.manifests:
        made = objects.apply(cluster, manifest, force=force)
        if secret is not None and manifest is one.root:
            rendezvous_secret.own(cluster, secret, made)
