"""Plans to text: Jinja templates in which no value can become syntax.

Whatever a template writes with {{ }} passes a serialiser, not by remembering a filter but because the
environment does it to every value: JSON for YAML, quoting for a shell. What is written for a cluster was
parsed once and written anew, so it is known to parse.

    render.py job.yaml --launcher job
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from k8s.base.yaml_text import as_json, dump, parse, read
from k8s.jobfile import pod_patch
from k8s.launchers import TEMPLATES
from k8s.plan.launcher import Launcher, RunsIn
from k8s.plan.model import Extra, Mount, Plan
from k8s.render import app_wrapper
from trainer.config.exits import Action, Exit, Fault, codes_for


@dataclass(frozen=True)
class Rendered:
    """A launcher's file. `objects` are what a cluster gets; a machine gets none."""

    text: str
    objects: tuple[dict[str, Any], ...]


def render(plan: Plan, launcher: Launcher) -> Rendered:
    """Return what a launcher is given for a plan."""
    if launcher.runs_in is RunsIn.CONTAINERS:
        text = _environment(as_json).get_template(launcher.template).render(plan=plan)
        return Rendered(dump(parse(text)), ())
    if launcher.runs_in is not RunsIn.POD:
        return Rendered(_environment(_shell).get_template(launcher.template).render(plan=plan), ())
    environment = _environment(as_json)
    beside = [_beside(environment, extra, plan) for extra in plan.extras]
    text = environment.get_template(f"{launcher.name}/pod.yaml.j2").render(plan=plan)
    (pod,) = parse(text)
    pod = pod_patch.apply(pod, plan.pod_patch)
    text = environment.get_template(launcher.template).render(
        plan=plan,
        pod=pod,
        placeholder=_PLACEHOLDER,
        fail_codes=codes_for(Action.FAIL),
        free_codes=codes_for(Action.RETRY_FREE),
        peer_codes=codes_for(Action.RETRY_PEER),
    )
    parsed = parse("---\n".join([*beside, text]))
    objects = tuple(_placed(one, pod) for one in parsed)
    if plan.app_wrapper:
        objects = (app_wrapper.wrap(objects, plan, launcher),)
    return Rendered(dump(objects), objects)


# Where the pod goes: writing and parsing it once more would take as long as all else. No text of a job
# file holds this character.
_PLACEHOLDER = "\0pod"


def _placed(value: Any, pod: dict[str, Any]) -> Any:
    """Put the pod in its places, a copy in each."""
    if isinstance(value, dict):
        return {key: _placed(item, pod) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, pod) for item in value]
    return _placed(pod, {}) if value == _PLACEHOLDER else value  # which copies


def owned(rendered: Rendered, uid: str) -> Rendered:
    """Make the job, the last object, the owner of the others: the cluster deletes them with it."""
    if len(rendered.objects) < 2:
        return rendered
    *others, job = rendered.objects
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {"name": job["metadata"]["name"], "uid": uid}
    objects = (
        *({**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}} for one in others),
        job,
    )
    return Rendered(dump(objects), objects)


def _beside(environment: Environment, extra: Extra, plan: Plan) -> str:
    labels = {**plan.labels, **extra.values.get("labels", {})}
    name = {"name": plan.name + extra.suffix, "labels": labels}
    return environment.get_template(f"shared/extras/{extra.template}.yaml.j2").render(
        plan=plan,
        values=extra.values,
        metadata={**plan.metadata, **name},
        selector=plan.selector,
    )


def rewritten(text: str, *, name: str) -> str:
    """Return manifests as `render` would write them, so that only what they say counts."""
    try:
        return dump([one for one in read(text) if one is not None])
    except yaml.YAMLError as error:
        raise Fault(Exit.CONFIG, f"{name}: not YAML: {' '.join(str(error).split())}") from None


@cache
def _environment(serialise: Callable[[Any], str]) -> Environment:
    environment = Environment(  # noqa: S701  # finalize escapes, for YAML and shells
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=serialise,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        bytecode_cache=_compiled(),
    )
    environment.filters["literal"] = _literal
    environment.filters["mounted"] = _mounted
    environment.filters["own_only"] = lambda amounts: {
        name: amount for name, amount in amounts.items() if "/" not in name
    }
    environment.filters["combine"] = lambda first, second: {**first, **second}
    return environment


def _compiled() -> FileSystemBytecodeCache | None:
    """Keep compiled templates where Python keeps this package's compiled modules, if it may."""
    folder = Path(cache_from_source(str(TEMPLATES / "__init__.py"))).parent
    if sys.dont_write_bytecode:
        return None
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


def _shell(value: Any) -> str:
    return shlex.quote(str(value))


def _mounted(mount: Mount) -> dict[str, Any]:
    """Write where a container has a volume, as Kubernetes has it."""
    made: dict[str, Any] = {"name": mount.name, "mountPath": mount.path}
    if mount.read_only:
        made["readOnly"] = True
    if mount.sub_path is not None:
        made["subPath"] = mount.sub_path
    return made


def _literal(value: str) -> str:
    """Keep the value of a container's variable as it is: Kubernetes expands $(NAME) and shortens $$."""
    return value.replace("$", "$$")
