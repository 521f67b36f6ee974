"""A job with the user's own program, and what travels with it.

own("jobset", nodes=2)
"""

from pathlib import Path
from typing import Any

import yaml

from k8s.render.manifests import Rendered
from tests.rendering import AWKWARD, job, render

RUN = {"script": "train.py", "args": ["--name", *AWKWARD]}
WORDS = ["train.py", "--name", *AWKWARD]


def own(launcher: str, **changes: Any) -> Rendered:
    return render(job(**{"run": RUN, "code": {"path": "."}, **changes}), launcher)


def maps(rendered: Rendered) -> dict[str, dict[str, Any]]:
    """Return the ConfigMaps by the name of their file."""
    found = [one for one in rendered.objects if one["kind"] == "ConfigMap"]
    return {next(iter(one["binaryData"])): one for one in found}


def write_job(folder: Path, **changes: Any) -> Path:
    path = folder / "job.yaml"
    values = {**job(run={"script": "train.py"}, code={"path": "code"}), **changes}
    path.write_text(yaml.safe_dump(values))
    return path
