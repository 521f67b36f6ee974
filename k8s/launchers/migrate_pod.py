"""The pod of a job as keys of a job file; fields without a key go into podPatch, or into a note.

render.py --migrate pytorchjob.yaml > job.yaml

`command` and `args` are the container's; k8s/cli/migrate.py makes `run` of them.
"""

from dataclasses import dataclass
from typing import Any

from k8s.base.yaml_text import read_one
from k8s.jobfile.env import is_credential, set_elsewhere
from k8s.jobfile.volumes import TAKEN, TAKEN_NAMES
from k8s.launchers.torchrun import SET_ELSEWHERE, parse, without_torchrun

Values = dict[str, Any]


@dataclass(frozen=True)
class MigratedPod:
    """Keys of a job file, those of its `scheduling`, and notes about fields that have no key."""

    values: Values
    scheduling: Values
    notes: list[str]


# Fields of the pod that muster sets itself, and fields that have a key of their own.
_SET_BY_MUSTER = {
    *("restartPolicy", "automountServiceAccountToken", "enableServiceLinks", "containers"),
    *("hostname", "subdomain", "setHostnameAsFQDN"),
    *("volumes", "imagePullSecrets", "serviceAccountName", "terminationGracePeriodSeconds"),
}
_POD_SETS = ("TRAINER_OUT", "TRAINER_DATA", "TRAINER_HEALTH")
_SCHEDULING = {
    "nodeSelector": "nodeSelector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "schedulerName": "schedulerName",
    "priorityClassName": "priorityClass",
}


def migrate_pod(template: Values, *, name: str, container: str | None = None) -> MigratedPod:
    """Migrate the pod template of job `name`, whose main container is `container`, or the first.

    Raises ValueError where there is none.
    """
    pod = template["spec"]
    mains = [one for one in pod["containers"] if container in (None, one["name"])][:1]
    if not mains:
        raise ValueError(f"no container of its pod is called {container or 'anything'}")
    (main,) = mains
    others = [one for one in pod["containers"] if one is not main]
    environment, settings, notes = _environment(main, secret=f"{name}-secrets")
    volumes = _volumes(pod, main, [*(pod.get("initContainers") or []), *others])
    changed = _container_patch(main, volumes.mounts)
    containers = [*([changed] if changed else []), *others]
    unmigrated = pod.keys() - _SET_BY_MUSTER - _SCHEDULING.keys()
    patch: Values = {key: value for key, value in pod.items() if key in unmigrated}
    patch |= {"containers": containers} if containers else {}
    patch |= {"volumes": volumes.unmigrated} if volumes.unmigrated else {}
    pod_patch = {"metadata": _metadata(template.get("metadata") or {}), "spec": patch}
    grace = pod.get("terminationGracePeriodSeconds")
    if grace == 0:
        notes.append(
            "terminationGracePeriodSeconds=0: no time to save a checkpoint; the default is used"
        )
    values: Values = {
        "image": main["image"],
        "imagePullPolicy": main.get("imagePullPolicy"),
        "imagePullSecrets": [one["name"] for one in pod.get("imagePullSecrets") or []],
        "resources": _resources(main.get("resources") or {}) | volumes.shm,
        "serviceAccount": pod.get("serviceAccountName"),
        "faults": {"gracePeriod": grace} if grace else {},
        "trainer": settings,
        "command": [str(word) for word in main.get("command") or []],
        "args": [str(word) for word in main.get("args") or []],
        "env": environment,
        "envFrom": main.get("envFrom"),
        **volumes.values,
        "podPatch": {key: part for key, part in pod_patch.items() if part},
    }
    values = {key: value for key, value in values.items() if value or key == "resources"}
    scheduling = {key: pod[field] for field, key in _SCHEDULING.items() if pod.get(field)}
    return MigratedPod(values, scheduling, [*notes, *volumes.notes])


def note_difference(first: Values, other: Values, *, names: tuple[str, str]) -> list[str]:
    """Return a note where another pod template differs; ValueError where its program does."""
    pods = [one["spec"] for one in (first, other)]
    mains = [pod["containers"][0] for pod in pods]
    if _program(mains[0]) != _program(mains[1]):
        raise ValueError(
            f"{names[1]} runs a different program than {names[0]}, but all nodes of a job run the same; "
            "migrate only the part that trains"
        )
    rest = [
        {**pod, "containers": [{**main, "command": None, "args": None}, *pod["containers"][1:]]}
        for pod, main in zip(pods, mains, strict=True)
    ]
    if rest[0] == rest[1]:
        return []
    return [f"{names[1]}: its pod differs from {names[0]}'s; the job file has {names[0]}'s"]


def _program(main: Values) -> object:
    """Return what a container runs, without torchrun's options that the launcher sets."""
    words = [str(word) for key in ("command", "args") for word in main.get(key) or []]
    options = without_torchrun(words)
    if options is None:
        return words
    asked = vars(parse(options, label="--migrate: command"))
    return {
        key: value for key, value in asked.items() if key.replace("_", "-") not in SET_ELSEWHERE
    }


_KUEUE_LABELS = {
    "kueue.x-k8s.io/queue-name": "queue",
    "kueue.x-k8s.io/priority-class": "priority",
}


def migrate_metadata(metadata: Values, *, launcher: str) -> tuple[Values, Values, list[str]]:
    """Return keys of the job file, those of its `scheduling` that Kueue's labels set, and notes."""
    labels = metadata.get("labels") or {}
    notes = []
    queue = {key: labels[name] for name, key in _KUEUE_LABELS.items() if name in labels}
    if "priority" in queue and "queue" not in queue:
        notes.append("label kueue.x-k8s.io/priority-class: has no effect without a queue")
        del queue["priority"]
    kept = {}
    for name, text in labels.items():
        domain = name.rpartition("/")[0]
        if domain == "app.kubernetes.io" or domain.endswith("kubeflow.org"):
            notes.append(f"label {name}={text!r}: muster or the controller sets it")
        elif name not in _KUEUE_LABELS:
            kept[name] = text
    values: Values = {
        "name": metadata["name"],
        "launcher": launcher,
        "namespace": metadata.get("namespace"),
        "labels": kept,
        "annotations": metadata.get("annotations"),
    }
    return values, queue, notes


def job_file(values: Values) -> Values:
    """Return the values that say something."""
    always = ("resources", "faults")
    if "queue" in values["scheduling"]:
        values["faults"].pop("suspend", None)  # Kueue suspends each job of a queue, and starts it
    return {k: value for k, value in values.items() if k in always or value not in (None, {}, [])}


def _metadata(own: Values) -> Values:
    """Return the pods' labels and annotations without those that muster sets itself."""
    kept: Values = {}
    for key in ("labels", "annotations"):
        found = {k: v for k, v in (own.get(key) or {}).items() if k != "sidecar.istio.io/inject"}
        kept |= {key: found} if found else {}
    return kept


def _resources(given: Values) -> Values:
    limits, requests = given.get("limits") or {}, given.get("requests") or {}
    found: Values = {}
    devices = {
        name: _count(name, count) for name, count in {**requests, **limits}.items() if "/" in name
    }
    gpus = [name for name in devices if "gpu" in name.lower() or "/mig-" in name]
    if gpus:
        found["gpu"] = devices.pop(gpus[0])
        if gpus[0] != "nvidia.com/gpu":
            found["gpuResource"] = gpus[0]
    for key, first, second in (("cpu", requests, limits), ("memory", limits, requests)):
        amount = first.get(key, second.get(key))
        if amount is not None:
            found[key] = str(amount)
    rdma = {n: c for n, c in devices.items() if n.startswith("rdma/") or n.endswith("/efa")}
    rest = {name: count for name, count in devices.items() if name not in rdma}
    return found | ({"rdma": rdma} if rdma else {}) | ({"devices": rest} if rest else {})


def _count(name: str, given: object) -> int:
    if not str(given).isdecimal():
        raise ValueError(
            f"{name}: {given!r} is not a number; replace placeholders first, e.g. with envsubst"
        )
    return int(str(given))


def _environment(main: Values, *, secret: str) -> tuple[list[Values], Values, list[str]]:
    """Return `env`, `trainer` and notes."""
    kept: list[Values] = []
    settings: Values = {}
    notes: list[str] = []
    for one in main.get("env") or []:
        name, value = one["name"], one.get("value", "")
        where = set_elsewhere(name)
        if where and where.startswith("set trainer.") and value and name not in _POD_SETS:
            settings[where.removeprefix("set trainer.")] = read_one(str(value), label=f"env {name}")
        elif where:
            notes.append(f"env {name}: not migrated; {where}")
        elif "valueFrom" not in one and is_credential(name, value):
            reference = {"secretKeyRef": {"name": secret, "key": name}}
            kept.append({"name": name, "valueFrom": reference})
            notes.append(f"env {name}: looks like a credential; put it in the Secret {secret}")
        else:
            kept.append({"name": name, **({} if "valueFrom" in one else {"value": value}), **one})
    return kept, settings, notes


@dataclass(frozen=True)
class _Volumes:
    values: Values  # checkpoints, data, volumes
    shm: Values
    unmigrated: list[Values]  # volumes for podPatch
    mounts: list[Values]  # the trainer's mounts for podPatch
    notes: list[str]


def _volumes(pod: Values, main: Values, others: list[Values]) -> _Volumes:
    """Migrate the trainer's volumes and mounts; `others` are the pod's other containers."""
    by_name = {one["name"]: one for one in pod.get("volumes") or []}
    values: Values = {}
    shm: Values = {}
    migrated: list[Values] = []
    unmigrated: list[Values] = []
    mounts: list[Values] = []
    notes: list[str] = []
    for mount in main.get("volumeMounts") or []:
        name, path = mount["name"], mount["mountPath"]
        if name not in by_name:
            notes.append(
                f"volume {name} at {path}: not defined in the pod; if the job creates it, add a claim"
            )
            continue
        volume = by_name[name]
        source = _source(volume)
        called = f"{name}-volume" if name in TAKEN_NAMES else name
        folder = {"/out": "checkpoints", "/data": "data"}.get(path)
        if path == "/dev/shm":  # noqa: S108
            size = (volume.get("emptyDir") or {}).get("sizeLimit")
            shm |= {"shm": str(size)} if size else {}
        elif path in TAKEN:
            if folder and {"pvc", "hostPath"} & (source or {}).keys() and "subPath" not in mount:
                values[folder] = source
            elif "emptyDir" not in volume:  # an emptyDir is empty when the pod starts
                notes.append(
                    f"volume {name}: muster mounts its own {path}; "
                    "mount this volume elsewhere, in `volumes`"
                )
        elif any(one["name"] == called for one in migrated):  # `volumes` has one mount of each
            mounts.append({**mount, "name": called})
        elif source:
            made = {"name": called, "path": path} | source
            made |= {"readOnly": True} if mount.get("readOnly") else {}
            migrated.append(made | ({"subPath": mount["subPath"]} if "subPath" in mount else {}))
        else:
            unmigrated.append(volume)
            mounts.append(mount)
    # Volumes that only other containers mount; shm, tmp and out are muster's own.
    elsewhere = {mount["name"] for one in others for mount in one.get("volumeMounts") or []}
    elsewhere -= {one["name"] for one in [*migrated, *unmigrated]} | {"shm", "tmp", "out"}
    unmigrated += [by_name[name] for name in sorted(elsewhere & by_name.keys())]
    values |= {"volumes": migrated} if migrated else {}
    return _Volumes(values, shm, unmigrated, mounts, notes)


_SOURCES = {
    "persistentVolumeClaim": ("pvc", "claimName"),
    "hostPath": ("hostPath", "path"),
    "configMap": ("configMap", "name"),
    "secret": ("secret", "secretName"),
}


def _source(volume: Values) -> Values | None:
    """Return a volume's source in keys of a job file, None when it has fields without a key."""
    for kind, (key, field) in _SOURCES.items():
        if kind in volume:
            fields = set(volume[kind]) - {"type", "readOnly"}
            return {key: volume[kind][field]} if fields == {field} else None
    size = (volume.get("emptyDir") or {}).get("sizeLimit")
    return {"emptyDir": str(size)} if size and len(volume["emptyDir"]) == 1 else None


def _container_patch(main: Values, mounts: list[Values]) -> Values | None:
    """Return a patch of the trainer's container with the fields that have no key."""
    migrated = {"name", "image", "imagePullPolicy", "resources", "env", "envFrom", "ports"}
    migrated |= {"command", "args", "volumeMounts"}
    rest = {key: value for key, value in main.items() if key not in migrated and value}
    rest |= {"volumeMounts": mounts} if mounts else {}
    return {"name": "trainer", **rest} if rest else None
