"""Writes the software bill of materials (CycloneDX) of the image's lock file, without network.

It reads the packages' metadata, so they must be installed for the Python that runs it.

    python docker/sbom.py docker/requirements.txt build/sbom.json     # make sbom
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

_ROOT = Path(__file__).parents[1]


class NotInstalled(Exception):
    """A package of the lock file is not installed, or in another version."""


def bill(lock: Path) -> Bom:
    """Return the bill of the packages of `lock` for this Python. Raises NotInstalled."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bom = Bom()
    bom.metadata.component = Component(
        type=ComponentType.APPLICATION,
        name=project["name"],
        version=project["version"],
        licenses=[_license(project["license"])],
        bom_ref=project["name"],
    )
    components = {name: _component(name, version) for name, version in locked(lock)}
    bom.components.update(components.values())
    # A package of not-in-image.txt has no component.
    direct = {canonicalize_name(Requirement(one).name) for one in project["dependencies"]}
    bom.register_dependency(
        bom.metadata.component, [components[name] for name in direct & set(components)]
    )
    for name, component in components.items():
        needed = {canonicalize_name(one.name) for one in _requirements(name)}
        bom.register_dependency(
            component, [components[other] for other in needed & set(components)]
        )
    return bom


def locked(lock: Path) -> Iterator[tuple[str, str]]:
    """Yield name and version of every package of the lock file for this Python."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        if re.match(r"[a-z0-9]", line):
            requirement = Requirement(line.removesuffix("\\"))
            if requirement.marker is None or requirement.marker.evaluate():
                (pinned,) = requirement.specifier
                yield canonicalize_name(requirement.name), pinned.version


def _component(name: str, version: str) -> Component:
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        raise NotInstalled(f"{name}=={version} is locked, but not installed; make setup") from None
    if Version(found["Version"]).public != Version(version).public:
        raise NotInstalled(
            f"{name}=={version} is locked, but {found['Version']} installed; make setup"
        )
    return Component(
        name=name,
        version=found["Version"],
        description=found["Summary"],
        licenses=_licenses(found),
        purl=PackageURL("pypi", name=name, version=found["Version"]),
        bom_ref=f"{name}=={found['Version']}",
    )


def _licenses(found: metadata.PackageMetadata) -> list[License]:
    """Return a package's license expression, or its one-line license, or its classifiers."""
    text = found["License-Expression"] or found["License"] or ""
    if text.strip() and "\n" not in text.strip():
        return [_license(text.strip())]
    classifiers = found.get_all("Classifier") or []
    names = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    return [_license(name) for name in names]


def _license(text: str) -> License:
    return LicenseFactory().make_from_string(
        text, license_acknowledgement=LicenseAcknowledgement.DECLARED
    )


def _requirements(name: str) -> Iterator[Requirement]:
    """Yield the requirements of an installed package for this Python, without its extras."""
    for requirement in map(Requirement, metadata.requires(name) or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def main(lock: str, target: str) -> int:
    """Write the bill of `lock` to `target`; return the exit code."""
    try:
        bom = bill(Path(lock))
    except NotInstalled as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 64
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    JsonV1Dot6(bom).output_to_file(target, allow_overwrite=True, indent=2)
    print(f"{target}: {len(bom.components)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
