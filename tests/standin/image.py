"""The image whose containers the stand-in runs, and a pod's container made from it.

By default it is this checkout: the trainer at /workspace as in the built image, with this Python and its
packages; or the image that MUSTER_TEST_IMAGE describes, as for tests/image/docker.py. A pod with the
image `frameworks` gets only Python and build/frameworks, and nothing of ours.
"""

import base64
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.image.container import Container
from tests.rendering import expand
from tests.standin.objects import Object

Find = Callable[[str], Object | None]  # by a name

FRAMEWORKS = ROOT / "build" / "frameworks"

_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


def _image(name: str) -> dict[str, Any]:
    if file := os.environ.get("MUSTER_TEST_IMAGE"):
        built: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        return {"mounts": []} | built
    environment = {
        "PATH": "/opt/python/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/opt/python/lib",  # else it would load Debian's libpython, another 3.11
        "PYTHONPATH": "/opt/packages",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
        "USER": "muster",
    }
    mounts = [
        (sys.base_prefix, "/opt/python", True),
        (sysconfig.get_path("purelib"), "/opt/packages", True),
        (str(ROOT / "trainer"), "/workspace/trainer", True),
    ]
    workdir = "/workspace"
    if name == "frameworks":
        workdir = "/"
        packages = sysconfig.get_path("purelib", vars={"base": str(FRAMEWORKS)})
        mounts = [mounts[0], (packages, "/opt/packages", True)]
    return {
        "root": "/",
        "command": ["python", "-m", "trainer.launch"],
        "environment": environment,
        "user": "65532:65532",
        "workdir": workdir,
        "mounts": mounts,
    }


def container(
    pod: Object,
    folder: Path,
    claims: Path,
    hosts: Path,
    *,
    secret: Find,
    config_map: Find,
) -> Container:
    """Return a pod's only container; its volumes are made below `folder` and `claims`.

    `secret` and `config_map` return the Secret and the ConfigMap of a name, or None.
    """
    (spec,) = pod["spec"]["containers"]
    assert not pod["spec"].get("initContainers"), "the stand-in runs no init containers"
    image, whole = _image(spec["image"]), pod["spec"].get("securityContext", {})
    security = whole | spec.get("securityContext", {})
    user = image["user"]
    if "runAsUser" in security:
        user = f"{security['runAsUser']}:{security.get('runAsGroup', security['runAsUser'])}"
    places = {v["name"]: _volume(v, folder, claims, whole.get("fsGroup")) for v in _volumes(pod)}
    for volume in _volumes(pod):
        if "configMap" in volume:
            _fill(folder / volume["name"], config_map(volume["configMap"]["name"]))
    mounts = [
        (str(place), one["mountPath"], one.get("readOnly", False))
        for one in spec.get("volumeMounts", [])
        if (place := places[one["name"]]) is not None
    ]
    memory = [v for v in _volumes(pod) if places[v["name"]] is None]
    (shm,) = memory or [{"emptyDir": {}}]
    return Container(
        root=image["root"],
        command=[*(spec.get("command") or image["command"]), *spec.get("args", [])],
        environment=image["environment"] | environment(pod, spec, secret=secret),
        user=user,
        workdir=image.get("workdir", "/workspace"),
        read_only=security.get("readOnlyRootFilesystem", False),
        shm_bytes=_mebibytes(shm["emptyDir"].get("sizeLimit", "64Mi")) << 20,
        mounts=[*image["mounts"], *mounts, (str(hosts), "/etc/hosts", True)],
        hostname=pod["spec"].get("hostname", pod["metadata"]["name"]),
    )


def _volumes(pod: Object) -> list[Object]:
    found: list[Object] = pod["spec"].get("volumes", [])
    return found


def _volume(volume: Object, folder: Path, claims: Path, group: int | None) -> Path | None:
    """Make a volume's folder; None for /dev/shm, which every container has."""
    place: Path
    if "persistentVolumeClaim" in volume:
        place = claims / volume["persistentVolumeClaim"]["claimName"]
    elif volume.get("emptyDir", {}).get("medium") == "Memory":
        return None
    else:
        known = {"emptyDir", "configMap"} & set(volume)
        assert known, f"the stand-in has no volume like {volume}"
        place = folder / volume["name"]
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o755 if "persistentVolumeClaim" in volume else 0o777)
    if group is not None:
        os.chown(place, -1, group)
        place.chmod(place.stat().st_mode | 0o2070)
    return place


def _fill(place: Path, config_map: Object | None) -> None:
    assert config_map, f"no ConfigMap for {place.name}"
    texts = {key: text.encode() for key, text in config_map.get("data", {}).items()}
    files = {key: base64.b64decode(text) for key, text in config_map.get("binaryData", {}).items()}
    for key, content in (texts | files).items():
        (place / key).write_bytes(content)
        (place / key).chmod(0o644)


def _mebibytes(text: str) -> int:
    number, unit = int(text[:-2]), text[-2:]
    return number * {"Mi": 1, "Gi": 1024}[unit]


def environment(pod: Object, spec: Object, *, secret: Find = lambda _: None) -> dict[str, str]:
    """Return the variables of a container as the kubelet sets them."""
    variables: dict[str, str] = {}
    for one in spec.get("env", []):
        source = one.get("valueFrom")
        if source is None:
            variables[one["name"]] = expand(one.get("value", ""), variables)
        elif "fieldRef" in source:
            variables[one["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
        else:
            reference = source["secretKeyRef"]
            found = secret(reference["name"])
            assert found or reference.get("optional"), f"no Secret {reference['name']}"
            if found:
                value = base64.b64decode(found["data"][reference["key"]])
                variables[one["name"]] = value.decode()
    return variables


def _field(pod: Object, path: str) -> str:
    if keyed := _FIELD.fullmatch(path):
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    found: Any = pod
    for part in path.split("."):
        found = found[part]
    return str(found)
