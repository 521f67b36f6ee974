"""Plans to text: Jinja templates in which no value can become syntax.

Whatever a template writes with {{ }} passes a serialiser, not by remembering a filter but because the
environment does it to every value: JSON for YAML, quoting for a shell. What is written for a cluster was
parsed once and written anew, so it is known to parse.

    render.py job.yaml --launcher job
"""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from k8s import patch
from k8s.launchers import TEMPLATES, Launcher, RunsIn
from k8s.plan import Plan
from trainer.exits import Action, Exit, Fault, codes_for


@dataclass(frozen=True)
class Rendered:
    """A launcher's file. `objects` are what a cluster gets; a machine gets none."""

    text: str
    objects: tuple[dict[str, Any], ...]


def render(plan: Plan, launcher: Launcher) -> Rendered:
    """Return what a launcher is given for a plan."""
    if launcher.runs_in is not RunsIn.POD:
        return Rendered(_environment(_shell).get_template(launcher.template).render(plan=plan), ())
    environment = _environment(_json)
    pod = environment.get_template(f"{launcher.name}/pod.yaml.j2").render(plan=plan)
    text = environment.get_template(launcher.template).render(
        plan=plan,
        pod=patch.apply(yaml.load(pod, yaml.CSafeLoader), plan.pod_patch),
        fail_codes=codes_for(Action.FAIL),
        free_codes=codes_for(Action.RETRY_FREE),
        peer_codes=codes_for(Action.RETRY_PEER),
    )
    objects = tuple(yaml.load_all(text, yaml.CSafeLoader))
    return Rendered(_dump(objects), objects)


def rewritten(text: str, *, name: str) -> str:
    """Return manifests as `render` would write them, so that only what they say counts."""
    try:
        return _dump(tuple(one for one in yaml.load_all(text, yaml.CSafeLoader) if one is not None))
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
    )
    environment.filters["literal"] = _literal
    environment.filters["combine"] = lambda first, second: {**first, **second}
    return environment


def _shell(value: Any) -> str:
    return shlex.quote(str(value))


def _json(value: Any) -> str:
    """Write JSON that is YAML too: YAML does not join the halves of a surrogate pair."""
    text = json.dumps(value)
    return re.sub(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", _one_escape, text)


def _one_escape(pair: re.Match[str]) -> str:
    character: str = json.loads('"' + pair[0] + '"')
    return f"\\U{ord(character):08x}"


def _literal(value: str) -> str:
    """Keep the value of a container's variable as it is: Kubernetes expands $(NAME) and shortens $$."""
    return value.replace("$", "$$")


class _Dumper(yaml.CSafeDumper):
    """YAML that reads the same to every parser, and never with anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True


# Plain words only. PyYAML itself writes y, 1e-05 or 0o7 without quotes, since it reads them as text; the
# parser of kubectl reads a truth value and numbers, and the API then refuses them.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(:[A-Za-z0-9_./@-]+)*|[0-9]+(\.[0-9]+)?[KMGTPE]i")
_WORDS_FOR_OTHERS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _text(dumper: yaml.CSafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_FOR_OTHERS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def _dump(objects: tuple[dict[str, Any], ...]) -> str:
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1
    )
