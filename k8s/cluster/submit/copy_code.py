"""Copy a job's code folder to a claim, through a pod that runs only for the copy.

folder = find(manifests); copy(cluster, folder, Path("build/own-script/jobset.yaml"))
"""

import hashlib
import logging
import posixpath
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k8s.base.errors import config_error, in_one_line
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Object
from k8s.cluster.client.exec import Ended, execute
from k8s.cluster.state import mappings, reason, variables
from trainer.config.exits import Exit, Fault

LIFE = 900  # seconds for the whole copy; then the cluster ends the pod
_START, _GONE = 300.0, 60.0  # seconds for the pod to start; for an earlier pod to go
_TURN = 0.5  # seconds
_CONTAINER = "code"

# $1 is the file, $2 its hash, $3 its size. The launcher is not there yet: its object is applied later.
# The job's earlier code is removed last. Others may write to the claim, so links are refused: with a
# link they could make this pod write or remove files that only this pod may change.
_IS_THERE = '[ -f "$1" ] && [ "$(sha256sum < "$1")" = "$2  -" ]'
_PUT = """set -eu
folder="${1%/*}"
for place in "${folder%/*}" "$folder"; do
    [ ! -L "$place" ] || { echo "$place is a link; remove it"; exit 1; }
done
mkdir -p "$folder"
rm -f "$1.part"
head -c "$3" > "$1.part"
[ "$(sha256sum < "$1.part")" = "$2  -" ] || { echo 'the copy is not what was sent'; exit 1; }
mv "$1.part" "$1"
for other in "$folder"/*; do [ "$other" = "$1" ] || rm -f "$other"; done
"""

log = logging.getLogger("k8s")


@dataclass(frozen=True)
class Folder:
    """A packed folder: its hash, its claim, the file that pods read, and the pod that copies it."""

    sha256: str
    claim: str
    file: str
    pod: Object


def find(manifests: Sequence[Object]) -> Folder | None:
    """Return the folder that the pods of the manifests read from a claim, or None."""
    for spec in mappings(list(manifests)):
        for container in spec.get("containers") or ():
            if "MUSTER_CODE" in variables(container):
                return _folder(spec, container)
    return None


def _folder(spec: Object, container: Object) -> Folder | None:
    seen = variables(container)
    file = seen["MUSTER_CODE"]
    for mount in container.get("volumeMounts", []):
        place = mount["mountPath"]
        if posixpath.commonpath([file, place]) == place:
            volume = next(one for one in spec["volumes"] if one["name"] == mount["name"])
            if claim := volume.get("persistentVolumeClaim", {}).get("claimName"):
                job = posixpath.basename(posixpath.dirname(file))
                pod = _pod(spec, container, f"{job}-code", claim=claim, path=place)
                return Folder(seen.get("MUSTER_CODE_SHA256", ""), claim, file, pod)
    return None


def read(folder: Folder, manifest: Path) -> bytes:
    """Return the folder's archive, code.tar.gz next to a manifest. Raises Fault(64) for a wrong hash."""
    if str(manifest) == "-":
        raise config_error(
            "-: the job's code is in code.tar.gz, a file next to the manifest; render with -o DIR and "
            "submit the manifest's file"
        )
    file = manifest.parent / "code.tar.gz"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise config_error(f"{file}: {error.strerror}; render the job again with -o DIR") from None
    found = hashlib.sha256(content).hexdigest()
    if found != folder.sha256:
        raise config_error(
            f"{file}: has the hash {found}, but {manifest} names {folder.sha256}; render the job again "
            "with -o DIR"
        )
    return content


def _pod(spec: Object, container: Object, name: str, *, claim: str, path: str) -> Object:
    """Return the pod that copies. It has the rights of the job's own pods, and only sleeps."""
    kept = {"securityContext", "imagePullSecrets", "nodeSelector", "tolerations"}
    kept.add("serviceAccountName")  # it may be needed to pull the image
    amounts = {"cpu": "500m", "memory": "256Mi"}
    tools = {key: container[key] for key in ("image", "imagePullPolicy") if key in container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "muster"}},
        "spec": {key: value for key, value in spec.items() if key in kept}
        | {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFE,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                tools
                | {
                    "name": _CONTAINER,
                    "command": ["sleep", str(LIFE)],
                    "resources": {"requests": amounts, "limits": amounts},
                    "securityContext": container["securityContext"],
                    "volumeMounts": [{"name": "claim", "mountPath": path}],
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


def copy(cluster: Cluster, folder: Folder, manifest: Path) -> None:
    """Copy the folder to its claim, if it is not there yet. The pod is always deleted at the end.

    Raises Fault(64) if the claim does not exist, and Fault(69) or (71) if the folder cannot be copied.
    """
    content, claim, name = read(folder, manifest), folder.claim, folder.pod["metadata"]["name"]
    if objects.get(cluster, "v1", "PersistentVolumeClaim", claim) is None:
        raise config_error(
            f"{cluster.where}: no PersistentVolumeClaim {claim} for the job's code folder; create it"
        )

    def is_there() -> object:
        return objects.get(cluster, "v1", "Pod", name)

    objects.delete(cluster, folder.pod)  # of an earlier call that was killed
    objects.wait_until_gone(cluster, is_there, what=f"pod {name}", seconds=_GONE)
    objects.apply(cluster, folder.pod)
    try:
        _wait_for_start(cluster, name)
        words = [folder.file, folder.sha256, str(len(content))]
        if _in_pod(cluster, name, _IS_THERE, words).code == 0:
            log.info("claim %s has the folder already: %s", claim, folder.sha256)
            return
        done = _in_pod(cluster, name, _PUT, words, content)
        if done.code:
            what = f"{cluster.where}: claim {claim}: {folder.file} cannot be written"
            raise Fault(Exit.MACHINE, f"{what}: {in_one_line(done.output)}")
        size = len(content) / 1024
        log.info("copied the folder to claim %s: %s, %.0f KiB", claim, folder.sha256, size)
    finally:
        objects.delete(cluster, folder.pod)


def _in_pod(
    cluster: Cluster, pod: str, script: str, words: Sequence[str], stdin: bytes = b""
) -> Ended:
    command = ["sh", "-c", script, "sh", *words]
    return execute(cluster, pod, command, container=_CONTAINER, stdin=stdin)


def _wait_for_start(cluster: Cluster, name: str) -> None:
    """Wait until the pod runs. Raises Fault(69)."""
    end, said = time.monotonic() + _START, ""
    while True:
        found = objects.get(cluster, "v1", "Pod", name) or {}
        phase = found.get("status", {}).get("phase", "gone" if not found else "Pending")
        if phase == "Running":
            return
        why = f"{phase}{f': {text}' if (text := reason(found)) else ''}"
        if phase != "Pending" or time.monotonic() > end:
            raise Fault(
                Exit.PEER,
                f"{cluster.where}: pod {name}, which copies the folder, is {why}; try again",
            )
        if why != said:
            log.info("pod %s, which copies the folder: %s", name, why)
            said = why
        time.sleep(_TURN)
