"""Writes the current digest of each image, from its registry, after the image's tag.

python docker/digests.py docker/Dockerfile k8s/jobfile/code.py     # make lock
"""

import re
import sys
from pathlib import Path

import requests

# The registry on 127.0.0.1 is spoken to without TLS.
_IMAGE = re.compile(
    r"\b((docker\.io|ghcr\.io|gcr\.io|127\.0\.0\.1:\d+)/([a-z0-9._/-]+):([\w.-]+))(@sha256:[0-9a-f]{64})?"
)
# The index of all platforms, or the manifest of one platform if there is no index.
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class _NoDigest(Exception):
    """A registry has answered without a digest."""


def digest(registry: str, name: str, tag: str) -> str:
    """Return a tag's digest, as its registry gives it to anonymous users.

    Raises requests.RequestException and _NoDigest.
    """
    host = {"docker.io": "registry-1.docker.io"}.get(registry, registry)
    address = f"http{'' if ':' in host else 's'}://{host}/v2/{name}/manifests/{tag}"
    headers = {"Accept": ", ".join(_KINDS)}
    answer = requests.head(address, headers=headers, timeout=30)
    if answer.status_code == requests.codes.unauthorized:
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', answer.headers.get("WWW-Authenticate", "")))
        given = requests.get(wanted.pop("realm", ""), params=wanted, timeout=30).json()
        headers["Authorization"] = f"Bearer {given.get('token') or given.get('access_token')}"
        answer = requests.head(address, headers=headers, timeout=30)
    found: str = answer.headers.get("Docker-Content-Digest", "")
    if not answer.ok or not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise _NoDigest(f"{answer.status_code} {answer.reason}, digest {found!r:.80}")
    return found


def main(*files: str) -> int:
    """Write all digests into the files, or none if one is missing; return the exit code."""
    texts = {Path(file): Path(file).read_text(encoding="utf-8") for file in files}
    found: dict[str, str] = {}
    for image, *parts, _ in (one for text in texts.values() for one in _IMAGE.findall(text)):
        try:
            found[image] = digest(*parts)
        except (requests.RequestException, _NoDigest) as error:
            print(f"digests: {image}: {error}; no digest is changed", file=sys.stderr)
            return 69
    for path, text in texts.items():
        path.write_text(_IMAGE.sub(lambda one: f"{one[1]}@{found[one[1]]}", text), encoding="utf-8")
    print(f"{len(found)} images by digest")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
