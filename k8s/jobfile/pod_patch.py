"""The job file's `podPatch`: a strategic merge into the pod, applied last, and the result checked again.

As kubectl merges: mappings key by key, null takes away, lists replace, except those whose items have a
name of their own. Of these an item is merged into the one of its name, or replaces it where two kinds
of value exclude each other (a volume, a variable), or is added; `$patch: delete` takes it away. The
trainer's container is called `trainer` here, whatever a launcher calls it.

render.py job.yaml --set podPatch.spec.hostNetwork=true
"""

import difflib
import re
from typing import Any, Literal, NoReturn

from pydantic import Field

from k8s.base import names
from k8s.base.errors import config_error
from k8s.base.model import Key, Model

TRAINER = "trainer"

# The field that identifies an item of a list.
_IDENTITY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_REPLACED = ("volumes", "env")
# Mappings of texts: a key there may be called as one of these lists is.
_OWN_KEYS = ("labels", "annotations", "nodeSelector", "matchLabels", "volumeAttributes")

# The fields of Kubernetes 1.36.
POD = re.findall(
    r"\w+",
    """activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
    enableServiceLinks hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride
    imagePullSecrets
    initContainers nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName
    readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates
    schedulingGroup
    securityContext serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
    terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes""",
)
CONTAINER = re.findall(
    r"\w+",
    """args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe
    resizePolicy resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce
    terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir""",
)

# What other keys of the job file, or the launcher, set, and what depends on it.
_SET_ELSEWHERE = {
    "restartPolicy": "restarts depend on it",
    "hostname": "other nodes find the pod by its name",
    "hostnameOverride": "other nodes find the pod by its name",
    "subdomain": "other nodes find the pod by its name",
    "terminationGracePeriodSeconds": "set faults.gracePeriod",
    "activeDeadlineSeconds": "set faults.deadline",
}
_OF_THE_CONTAINER = {
    "command": "it starts the launcher; set run",
    "args": "the launcher reads them; set run.args",
    "image": "set image",
    "restartPolicy": "restarts depend on it; set faults.restarts",
    "restartPolicyRules": "restarts depend on it; set faults.restarts",
    "ports": "the rendezvous uses them",
}


class PodPatch(Model):
    """A strategic merge patch of the pod."""

    metadata: dict[Literal["labels", "annotations"], dict[Key, str]] = Field(
        {}, description="labels and annotations of the pods only"
    )
    spec: dict[str, Any] = Field({}, description="any field of a pod's spec")


_UNRESTRICTED = {"hostNetwork", "hostPID", "hostIPC", "privileged", "allowPrivilegeEscalation"}


def warnings(patch: PodPatch) -> list[str]:
    """Return warnings about fields of a patch that make the pods less secure."""
    found: list[str] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                as_root = key == "runAsNonRoot" and item is False
                if key == "automountServiceAccountToken" and item is True:
                    found.append(f"{path}.{key}: the pods get a token for the cluster's API")
                if as_root or (key in _UNRESTRICTED and item is True):
                    found.append(f"{path}.{key}: Pod Security restricted forbids it")
                walk(item, f"{path}.{key}")
        elif isinstance(value, list):
            for item in value:
                name = item.get("name", "?") if isinstance(item, dict) else "?"
                walk(item, f"{path}[{name}]")

    walk(patch.spec, "podPatch.spec")
    if patch.spec.get("hostNetwork") is True:
        found.append(
            "podPatch.spec.hostNetwork: NetworkPolicies do not cover it: who reaches the machine "
            "reaches the ports of gloo, NCCL and torch's store, which have no authentication"
        )
    return found


def apply(pod: dict[str, Any], patch: PodPatch) -> dict[str, Any]:
    """Return a pod template with a patch merged into it. Raises Fault(64)."""
    if not patch.metadata and not patch.spec:
        return pod
    main = pod["spec"]["containers"][0]["name"]
    spec = _renamed(patch.spec, main)
    _check_patch(spec, main)
    if spec.get("hostNetwork") is True:
        # Kubernetes' default gives such a pod the machine's DNS, which has no names of other nodes.
        spec = {"dnsPolicy": "ClusterFirstWithHostNet"} | spec
    for name, own in pod["metadata"].items():
        given = patch.metadata.get(name, {})
        for key in given:
            if given[key] != own.get(key, given[key]):
                _refuse(f"metadata.{name}.{key}", "muster sets it; choose another key")
            try:
                if name == "labels":
                    names.label_value(given[key])
            except ValueError as error:
                _refuse(f"metadata.labels.{key}={given[key]!r}", str(error))
    merged = {
        "metadata": _merge(
            pod["metadata"], {str(k): v for k, v in patch.metadata.items()}, "metadata"
        ),
        "spec": _merge(pod["spec"], spec, "spec"),
    }
    _check_result(pod["spec"], merged["spec"])
    return merged


def _refuse(path: str, reason: str) -> NoReturn:
    raise config_error(f"podPatch.{path}: {reason}")


def _renamed(spec: dict[str, Any], main: str) -> dict[str, Any]:
    containers = spec.get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(one, dict) for one in containers):
        _refuse("spec.containers", "must be a list of mappings")
    renamed = [one | ({"name": main} if one.get("name") == TRAINER else {}) for one in containers]
    return spec | ({"containers": renamed} if renamed else {})


def _check_patch(spec: dict[str, Any], main: str) -> None:
    _check_keys(spec, POD, "spec")
    for key, reason in _SET_ELSEWHERE.items():
        if key in spec:
            _refuse(f"spec.{key}", f"cannot be patched; {reason}")
    for kind in ("containers", "initContainers"):
        items = spec.get(kind, [])
        for one in items if isinstance(items, list) else []:
            where = f"spec.{kind}[{one.get('name', '?')}]" if isinstance(one, dict) else ""
            if where:
                _check_keys(one, CONTAINER, where)
            for key, reason in _OF_THE_CONTAINER.items():
                if where and kind == "containers" and one.get("name") == main and key in one:
                    _refuse(f"spec.containers[{TRAINER}].{key}", f"cannot be patched; {reason}")


def _check_keys(given: dict[str, Any], known: list[str], path: str) -> None:
    for key in given:
        if key not in known and key != "$patch":
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            _refuse(f"{path}.{key}", f"no such field{hint}")


def _merge(target: dict[str, Any], patch: dict[str, Any], path: str) -> dict[str, Any]:
    directive = patch.get("$patch")
    if directive not in (None, "replace"):
        _refuse(
            f"{path}.$patch",
            f"{directive!r} does not work on a mapping; use replace, or set the mapping to null",
        )
    merged = {} if directive == "replace" else dict(target)
    identified = () if path.rpartition(".")[2] in _OWN_KEYS else _IDENTITY
    for key, value in patch.items():
        at = f"{path}.{key}"
        if key == "$patch":
            continue
        if str(key).startswith("$"):
            _refuse(at, "no such directive; use $patch")
        if value is None:
            merged.pop(key, None)
            continue
        kind = list if key in identified else type(merged.get(key, value))
        if kind in (list, dict) and not isinstance(value, kind):
            _refuse(at, f"must be a {'list' if kind is list else 'mapping'}")
        if isinstance(value, dict):
            under = merged.get(key)
            merged[key] = _merge(under if isinstance(under, dict) else {}, value, at)
        elif isinstance(value, list) and key in identified:
            merged[key] = _merge_list(merged.get(key) or [], value, key, at)
        else:
            merged[key] = value
    return merged


def _merge_list(target: list[Any], patch: list[Any], key: str, path: str) -> list[Any]:
    identity = _IDENTITY[key]
    kind, called = (int, "a number") if identity == "containerPort" else (str, "a text")
    merged = {one[identity]: one for one in target}
    for index, one in enumerate(patch):
        if not isinstance(one, dict) or not isinstance(one.get(identity), kind):
            _refuse(f"{path}[{index}]", f"must be a mapping with {identity}, {called}")
        name = one[identity]
        if one.get("$patch") == "delete":
            if merged.pop(name, None) is None:
                _refuse(f"{path}[{name}]", "no item with this name to delete")
            continue
        under = {} if key in _REPLACED else merged.get(name, {})
        merged[name] = _merge(under, one, f"{path}[{name}]")
    return list(merged.values())


def _check_result(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Refuse a pod that its launcher's contract no longer holds for, or that cannot start."""
    main = before["containers"][0]
    containers = after.get("containers")
    if not containers or containers[0]["name"] != main["name"]:
        _refuse(f"spec.containers[{TRAINER}]", "must be the first container, and cannot be removed")
    own = {one["name"]: one for one in main["env"]}
    seen = {one["name"]: one for one in containers[0].get("env", [])}
    for name in sorted(own.keys() | seen.keys()):
        prefixes = ("PET_", "TRAINER_", "MUSTER_")
        if name.startswith(prefixes) and own.get(name) != seen.get(name):
            _refuse(f"spec.containers[{TRAINER}].env[{name}]", "the launcher or `trainer` sets it")
    volumes = [one["name"] for one in after.get("volumes", [])]
    for kind in ("containers", "initContainers"):
        for one in after.get(kind, []):
            for mount in one.get("volumeMounts", []):
                if mount.get("name") not in volumes:
                    where = f"spec.{kind}[{one['name']}].volumeMounts[{mount['mountPath']}]"
                    _refuse(where, f"no volume is called {mount.get('name')!r}; add it to volumes")
