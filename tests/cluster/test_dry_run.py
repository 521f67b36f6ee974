"""A strict dry run of every golden on the API server itself."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from k8s.cluster.client import objects
from k8s.cluster.client.objects import NotServed
from k8s.jobfile import load
from tests.cluster.conftest import Verbs
from tests.rendering import GOLDEN, render
from trainer.config.exits import Fault

FEATURES = sorted(path.stem for path in (GOLDEN / "features").glob("*.yaml"))


def goldens(launcher: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the renderings for a launcher by name, without features that it does not support."""
    for path in sorted(GOLDEN.glob(f"*/{launcher}.yaml")):
        yield path.parent.name, [one for one in yaml.safe_load_all(path.read_text()) if one]
    folder = GOLDEN / "features"
    for name in FEATURES:
        values = load.read([str(folder / "plain.yaml"), str(folder / f"{name}.yaml")]).values
        try:
            yield name, list(render(values, launcher).objects)
        except Fault:
            continue


@pytest.mark.slow
def test_every_golden_is_taken(verbs: Verbs, launcher: str) -> None:
    refused = []
    tried = 0
    for name, made in goldens(launcher):
        for one in made:
            here = one | {"metadata": {**one["metadata"], "namespace": verbs.cluster.namespace}}
            try:
                objects.apply(verbs.cluster, here, dry_run=True)
                tried += 1
            except NotServed:
                continue  # a companion object of an API that this cluster does not serve
            except Fault as fault:
                refused.append(f"{name}: {one['kind']}: {fault}")
    assert refused == []
    assert tried > len(FEATURES)
