"""The names that a headless Service gives to pods, as lines of a hosts file.

lines = names_of(service, [(pod, "10.77.0.2")])
"""

from collections.abc import Iterable

from tests.standin.objects import Object


def names_of(service: Object, pods: Iterable[tuple[Object, str]]) -> list[str]:
    """Return a line for each pod that the Service selects; `pods` are pairs of pod and address."""
    metadata, spec = service["metadata"], service["spec"]
    wanted = (spec.get("selector") or {}).items()
    if spec.get("clusterIP") != "None" or not wanted:
        return []
    lines = []
    for pod, address in pods:
        labels = pod["metadata"].get("labels", {})
        if pod["metadata"]["namespace"] != metadata["namespace"] or not wanted <= labels.items():
            continue
        names = [metadata["name"]]
        if pod["spec"].get("subdomain") == metadata["name"]:
            host = pod["spec"].get("hostname", pod["metadata"]["name"])
            names = [f"{host}.{metadata['name']}", *names]
        domain = f"{metadata['namespace']}.svc"
        full = [f"{name}.{rest}" for name in names for rest in (domain, f"{domain}.cluster.local")]
        lines.append(" ".join([address, *names, *full]))
    return lines
