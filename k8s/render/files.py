"""Write rendered jobs to files. Temporary files are written first and then moved: none is half written.

render.py job.yaml --all -o build
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from k8s.base.errors import config_error
from k8s.base.yaml_text import dump
from k8s.render.manifests import Rendered


def files(rendered: Rendered, *, split: bool) -> Iterator[tuple[str, str | bytes]]:
    """Yield (name below the folder, content): one for the launcher, or one for each object.

    On a machine there is no ConfigMap, so files that travel with the job are next to its script.
    """
    name = rendered.launcher.name
    yield from ((one.name, one.content) for one in rendered.plan.beside)
    if not split or not rendered.objects:
        yield f"{name}{rendered.launcher.suffix}", rendered.text
        return
    names = []
    for one in rendered.objects:
        names.append(f"{one['kind'].lower()}-{one['metadata']['name']}.yaml")
        yield f"{name}/{names[-1]}", dump([one])
    index = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    yield f"{name}/kustomization.yaml", dump([index | {"resources": names}])


def write(folder: Path, wanted: Sequence[tuple[str, str | bytes]]) -> None:
    """Write contents to files in `folder`: all or none. Raises Fault(64)."""
    moves: list[tuple[Path, Path]] = []
    with contextlib.ExitStack() as cleanup:
        try:
            for place, content in dict(wanted).items():
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.")
                cleanup.callback(Path(name).unlink, missing_ok=True)
                with os.fdopen(handle, "wb") as file:
                    file.write(content if isinstance(content, bytes) else content.encode())
                Path(name).chmod(0o755 if target.suffix == ".sh" else 0o644)
                moves.append((Path(name), target))
            for source, target in moves:
                source.replace(target)
        except OSError as error:
            raise config_error(f"-o {folder}: {error.strerror}") from None
    for _, target in moves:
        print(f"wrote {target}", file=sys.stderr)
