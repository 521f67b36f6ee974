"""Refuses what a cluster would: unknown fields, and pods that break Pod Security `restricted`.

The checks of Pod Security are those of the policy's page for Linux pods, as far as a pod of the kit
could break them; left out are the host's ports, SELinux, AppArmor, sysctls, the proc mount and
ephemeral containers.
"""

from collections.abc import Iterator
from functools import cache

import kubernetes_validate

from tests.standin.objects import Object
from tests.standin.server import Refusal, Server

_VERSION = "1.34"
_LABEL = "pod-security.kubernetes.io/enforce"
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
# Without a cache it reads megabytes of schema for every object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


def check(server: Server, one: Object) -> None:
    """Raise Refusal for an object that a cluster would refuse."""
    _schema(one)
    if one["kind"] == "Pod":
        namespace = server.get("v1", "Namespace", "", one["metadata"]["namespace"])
        labels = namespace["metadata"].get("labels", {}) if namespace else {}
        if labels.get(_LABEL) == "restricted" and (found := [*violations(one["spec"])]):
            name = one["metadata"].get("name") or one["metadata"]["generateName"]
            raise Refusal(
                403,
                f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": '
                + ", ".join(found),
            )


def _schema(one: Object) -> None:
    """Check Kubernetes' own kinds against its schema, strictly; objects of other APIs pass."""
    group = one["apiVersion"].partition("/")[0] if "/" in one["apiVersion"] else ""
    if "." in group.removesuffix(".k8s.io"):
        return
    try:
        kubernetes_validate.validate(one, _VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Refusal(422, f"{one['kind']} is invalid: {error.message}") from None
    except kubernetes_validate.SchemaNotFoundError:
        return


def violations(spec: Object) -> Iterator[str]:
    """Yield how a pod breaks `restricted`."""
    whole = spec.get("securityContext", {})
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes", []):
        if types := volume.keys() - {"name"} - _VOLUMES:
            yield f'restricted volume types (volume "{volume["name"]}" uses {", ".join(types)})'
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        own = container.get("securityContext", {})
        broken = _in_container(own, whole | own)
        yield from (f'{text} (container "{container["name"]}")' for text in broken)


def _in_container(own: Object, both: Object) -> Iterator[str]:
    """Yield how a container breaks `restricted`: by its own securityContext or by the pod's."""
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation != false"
    capabilities = own.get("capabilities", {})
    more = set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}
    if "ALL" not in capabilities.get("drop", []) or more:
        yield "unrestricted capabilities"
    if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
        yield "runAsNonRoot != true"
    if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile"
