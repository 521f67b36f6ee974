"""The pod of a PyTorchJob as keys of a job file; what has none goes into podPatch, or into a note.

render.py --migrate pytorchjob.yaml > job.yaml
"""

from typing import Any

from k8s.jobfile.env import is_credential, set_elsewhere
from k8s.jobfile.volumes import TAKEN, TAKEN_NAMES

_KUBERNETES_OWN = ("cpu", "memory")
# What the kit sets itself, and better.
_SET_HERE = {
    "restartPolicy",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "containers",
    "volumes",
}
_PLAIN = {"serviceAccountName": "serviceAccount"}
_SCHEDULING = {
    "nodeSelector": "nodeSelector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "schedulerName": "schedulerName",
    "priorityClassName": "priorityClass",
}
_SOURCES = {
    "persistentVolumeClaim": ("pvc", "claimName"),
    "hostPath": ("hostPath", "path"),
    "configMap": ("configMap", "name"),
    "secret": ("secret", "secretName"),
}


def carry(
    template: dict[str, Any], values: dict[str, Any], scheduling: dict[str, Any], notes: list[str]
) -> None:
    """Write what a pod template says into `values` and `scheduling`."""
    pod = template["spec"]
    mains = [one for one in pod["containers"] if one["name"] == "pytorch"]
    if not mains:
        raise ValueError("no container of its pod is called pytorch")
    (main,) = mains
    others = [one for one in pod["containers"] if one is not main]
    values["image"] = main["image"]
    if "imagePullPolicy" in main:
        values["imagePullPolicy"] = main["imagePullPolicy"]
    if pod.get("imagePullSecrets"):
        values["imagePullSecrets"] = [one["name"] for one in pod["imagePullSecrets"]]
    values["resources"] = _resources(main.get("resources") or {})
    values |= {key: pod[field] for field, key in _PLAIN.items() if pod.get(field)}
    if "terminationGracePeriodSeconds" in pod:
        values["faults"] = {"gracePeriod": pod["terminationGracePeriodSeconds"]}
    scheduling |= {key: pod[field] for field, key in _SCHEDULING.items() if pod.get(field)}
    _environment(main, values, notes)
    patch = {key: value for key, value in pod.items() if key not in _SET_HERE | set(_SCHEDULING)}
    for key in ("imagePullSecrets", "serviceAccountName", "terminationGracePeriodSeconds"):
        patch.pop(key, None)
    if others:
        patch["containers"] = others
    notes += _volumes(pod.get("volumes") or [], main, values, patch)
    if rest := _rest(main, notes):
        patch["containers"] = [rest, *others]
    found = {"metadata": _metadata(template.get("metadata") or {}), "spec": patch}
    if any(found.values()):
        values["podPatch"] = {key: part for key, part in found.items() if part}


def _metadata(own: dict[str, Any]) -> dict[str, Any]:
    """Return the pods' labels and annotations without what the kit sets itself."""
    kept = {key: dict(own[key]) for key in ("labels", "annotations") if own.get(key)}
    for found in kept.values():
        found.pop("sidecar.istio.io/inject", None)
    return {key: found for key, found in kept.items() if found}


def _resources(given: dict[str, Any]) -> dict[str, Any]:
    limits, requests = given.get("limits") or {}, given.get("requests") or {}
    found: dict[str, Any] = {}
    devices = {name: int(count) for name, count in {**requests, **limits}.items() if "/" in name}
    gpus = [name for name in devices if "gpu" in name.lower() or "/mig-" in name]
    if gpus:
        found["gpu"] = devices.pop(gpus[0])
        if gpus[0] != "nvidia.com/gpu":
            found["gpuResource"] = gpus[0]
    for key in _KUBERNETES_OWN:
        amount = requests.get(key, limits.get(key)) if key == "cpu" else limits.get(key)
        amount = requests.get(key) if amount is None else amount
        if amount is not None:
            found[key] = str(amount)
    rdma = {n: c for n, c in devices.items() if n.startswith("rdma/") or n.endswith("/efa")}
    rest = {name: count for name, count in devices.items() if name not in rdma}
    return found | ({"rdma": rdma} if rdma else {}) | ({"devices": rest} if rest else {})


def _environment(main: dict[str, Any], values: dict[str, Any], notes: list[str]) -> None:
    kept = []
    for one in main.get("env") or []:
        name, value = one["name"], one.get("value", "")
        if where := set_elsewhere(name):
            notes.append(f"env {name}: not carried; {where}")
        elif "valueFrom" not in one and is_credential(name, value):
            key = {"name": f"{values['name']}-secrets", "key": name}
            kept.append({"name": name, "valueFrom": {"secretKeyRef": key}})
            notes.append(f"env {name}: looks like a credential; put it in the Secret {key['name']}")
        else:
            kept.append({"name": name, **({} if "valueFrom" in one else {"value": value}), **one})
    if kept:
        values["env"] = kept
    if main.get("envFrom"):
        values["envFrom"] = main["envFrom"]


def _volumes(
    volumes: list[dict[str, Any]],
    main: dict[str, Any],
    values: dict[str, Any],
    patch: dict[str, Any],
) -> list[str]:
    """Carry volumes with their mounts, those in no key's words into the patch; note what is left."""
    by_name = {one["name"]: one for one in volumes}
    found, mounts, odd, notes = [], [], [], []
    for mount in main.get("volumeMounts") or []:
        source = by_name[mount["name"]]
        if mount["mountPath"] == "/dev/shm":  # noqa: S108
            size = (source.get("emptyDir") or {}).get("sizeLimit")
            values["resources"] |= {"shm": str(size)} if size else {}
        elif mount["mountPath"] in TAKEN:
            notes += _known_place(source, mount, values)
        elif plain := _source(source):
            taken = mount["name"] in TAKEN_NAMES
            name = f"{mount['name']}-volume" if taken else mount["name"]
            made = {"name": name, "path": mount["mountPath"], **plain}
            made |= {"readOnly": True} if mount.get("readOnly") else {}
            found.append(made | ({"subPath": mount["subPath"]} if "subPath" in mount else {}))
        else:
            odd.append(source)
            mounts.append(mount)
    if found:
        values["volumes"] = found
    main["volumeMounts"] = mounts
    odd += _of_others(by_name, patch, {one["name"] for one in [*found, *odd]})
    if odd:
        patch["volumes"] = odd
    return notes


def _of_others(
    volumes: dict[str, Any], patch: dict[str, Any], carried: set[str]
) -> list[dict[str, Any]]:
    """Return the volumes that only other containers of the pod mount."""
    others = [*patch.get("initContainers", []), *patch.get("containers", [])]
    wanted = {mount["name"] for one in others for mount in one.get("volumeMounts") or []}
    always = {"shm", "tmp", "out"}
    return [volumes[name] for name in sorted(wanted - carried - always)]


def _known_place(
    source: dict[str, Any], mount: dict[str, Any], values: dict[str, Any]
) -> list[str]:
    """Carry what is mounted where the pod has a folder of its own; note what has no key."""
    path = mount["mountPath"]
    key = {"/out": "checkpoints", "/data": "data"}.get(path)
    plain = _source(source) or {}
    if key and {"pvc", "hostPath"} & plain.keys() and "subPath" not in mount:
        values[key] = plain
    elif "emptyDir" not in source:  # which holds nothing when the pod starts
        return [
            f"volume {mount['name']}: the pod has its own {path}; mount it elsewhere, in `volumes`"
        ]
    return []


def _source(volume: dict[str, Any]) -> dict[str, Any] | None:
    """Return a volume's source in a job file's words, None when it has more to say than they can."""
    for kind, (key, field) in _SOURCES.items():
        if kind in volume:
            said = set(volume[kind]) - {"type", "readOnly"}
            return {key: volume[kind][field]} if said == {field} else None
    size = (volume.get("emptyDir") or {}).get("sizeLimit")
    return {"emptyDir": str(size)} if size and len(volume["emptyDir"]) == 1 else None


def _rest(main: dict[str, Any], notes: list[str]) -> dict[str, Any] | None:
    """Return a patch of the trainer's container for what has no key, None if all has."""
    for key in ("command", "args"):
        if key in main:
            text = " ".join(map(str, main[key]))
            notes.append(
                f"{key}: {text[:200]!r} is not carried; the image's entrypoint starts the ranks and "
                "trainer.task says what is trained"
            )
    carried = {"name", "image", "imagePullPolicy", "resources", "env", "envFrom", "ports"}
    rest = {k: v for k, v in main.items() if k not in carried | {"command", "args"} and v}
    return {"name": "trainer", **rest} if rest else None
