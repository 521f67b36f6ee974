"""Render plans as text with Jinja templates in which no value can become syntax.

The environment serialises every value that a template writes with {{ }}: as JSON for YAML, quoted for a
shell. Manifests are parsed and written again, so they are valid YAML.

    render.py job.yaml --launcher job
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from k8s import launchers
from k8s.base.yaml_text import as_json, dump, parse
from k8s.jobfile import pod_patch
from k8s.jobfile.spec import JobSpec
from k8s.plan import make
from k8s.plan.launcher import Launcher, RunsIn
from k8s.plan.model import Extra, Mount, Payload, Plan
from k8s.render import app_wrapper
from k8s.render.payload import make_payload
from trainer.config.exits import Action, codes_for


@dataclass(frozen=True)
class Rendered:
    """A job for one launcher: its plan, and `objects` for a cluster or a `script` for a machine."""

    plan: Plan
    launcher: Launcher
    objects: tuple[dict[str, Any], ...] = ()
    script: str = ""

    @cached_property
    def text(self) -> str:
        """The text of the file. Writing it takes as long as rendering, and not every caller needs it."""
        return dump(self.objects) if self.objects else self.script


def render(spec: JobSpec, launcher: Launcher, payload: Payload | None = None) -> Rendered:
    """Plan a job for a launcher and render it. Raises Fault(64).

    Without a payload, `code.path` is relative to the current folder.
    """
    launchers.check_labels(spec)
    plan = make.make(spec, launcher, payload or make_payload(spec, Path()))
    if launcher.runs_in is RunsIn.CONTAINERS:
        text = _environment(as_json).get_template(launcher.template).render(plan=plan)
        return Rendered(plan, launcher, script=dump(parse(text)))
    if launcher.runs_in is not RunsIn.POD:
        text = _environment(_shell).get_template(launcher.template).render(plan=plan)
        return Rendered(plan, launcher, script=text)
    environment = _environment(as_json)
    extras = [_extra(environment, extra, plan) for extra in plan.extras]
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
    parsed = parse("---\n".join([*extras, text]))
    objects = tuple(_placed(one, pod) for one in parsed)
    if plan.app_wrapper:
        objects = (app_wrapper.wrap(objects, plan, launcher),)
    return Rendered(plan, launcher, objects)


# Replaces the pod in a manifest's template, because writing and parsing the pod again would double the
# time. No text of a job file can have this character.
_PLACEHOLDER = "\0pod"


def _placed(value: Any, pod: dict[str, Any]) -> Any:
    """Replace each placeholder by a copy of the pod."""
    if isinstance(value, dict):
        return {key: _placed(item, pod) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, pod) for item in value]
    return _placed(pod, {}) if value == _PLACEHOLDER else value  # _placed copies it


def owned(rendered: Rendered, uid: str) -> Rendered:
    """Make the job, the last object, the owner of the others: the cluster then deletes them with it."""
    if len(rendered.objects) < 2:
        return rendered
    *others, job = rendered.objects
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {"name": job["metadata"]["name"], "uid": uid}
    objects = (
        *({**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}} for one in others),
        job,
    )
    return replace(rendered, objects=objects)


def annotated(rendered: Rendered, annotations: dict[str, str]) -> Rendered:
    """Annotate the last object, which is the job or its AppWrapper, but not the pods."""
    if not rendered.objects:
        return rendered
    *others, job = rendered.objects
    found = job["metadata"].get("annotations", {}) | annotations
    objects = (*others, {**job, "metadata": {**job["metadata"], "annotations": found}})
    return replace(rendered, objects=objects)


def _extra(environment: Environment, extra: Extra, plan: Plan) -> str:
    labels = {**plan.identity.labels, **extra.values.get("labels", {})}
    name = {"name": plan.name + extra.suffix, "labels": labels}
    return environment.get_template(f"shared/extras/{extra.template}.yaml.j2").render(
        plan=plan,
        values=extra.values,
        metadata={**plan.identity.metadata, **name},
        selector=plan.selector,
    )


@cache
def _environment(serialise: Callable[[Any], str]) -> Environment:
    environment = Environment(  # noqa: S701  # finalize escapes, for YAML and shells
        loader=FileSystemLoader(launchers.TEMPLATES),
        undefined=StrictUndefined,
        finalize=serialise,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        bytecode_cache=FileSystemBytecodeCache(),  # compiling takes a tenth of the time
    )
    environment.filters["literal"] = _literal
    environment.filters["mounted"] = _mounted
    environment.filters["own_only"] = lambda amounts: {
        name: amount for name, amount in amounts.items() if "/" not in name
    }
    environment.filters["combine"] = lambda first, second: {**first, **second}
    return environment


def _shell(value: Any) -> str:
    return shlex.quote(str(value))


def _mounted(mount: Mount) -> dict[str, Any]:
    """Return a mount as an entry of a container's volumeMounts."""
    made: dict[str, Any] = {"name": mount.name, "mountPath": mount.path}
    if mount.read_only:
        made["readOnly"] = True
    if mount.sub_path is not None:
        made["subPath"] = mount.sub_path
    return made


def _literal(value: str) -> str:
    """Escape the value of a container's variable: Kubernetes would expand $(NAME) and shorten $$."""
    return value.replace("$", "$$")
