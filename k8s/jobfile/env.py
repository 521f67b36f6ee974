"""The job file's `env` and `envFrom`: what is added to the trainer's environment.

render.py job.yaml --set 'env[0]={name: A, valueFrom: {secretKeyRef: {name: a, key: b}}}'
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from k8s.base.model import DataKey, Model, OneOf, Subdomain, Variable
from k8s.base.names import matching
from trainer.config.environment import KEY, OWN, PREFIX, variable
from trainer.config.settings import Settings

_field_path = matching(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)",
    "not a field of a pod that a variable can hold; e.g. spec.nodeName",
)


class FieldRef(Model):
    """A field of the pod."""

    field_path: Annotated[str, AfterValidator(_field_path)] = Field(
        description="the field, e.g. spec.nodeName"
    )


class KeyRef(Model):
    """A key of a ConfigMap or Secret."""

    name: Subdomain = Field(description="name of the ConfigMap or Secret")
    key: DataKey = Field(description="the key in it")
    optional: bool = Field(False, description="if there is none, leave the variable unset")


class ValueFrom(OneOf):
    """Where a variable's value comes from: one of these."""

    field_ref: FieldRef | None = Field(None, description="a field of the pod")
    config_map_key_ref: KeyRef | None = Field(None, description="a key of a ConfigMap")
    secret_key_ref: KeyRef | None = Field(None, description="a key of a Secret")


class EnvVar(OneOf):
    """An environment variable; its value reaches the trainer unchanged."""

    one_of = ("value", "value_from")

    name: Variable = Field(description="letters, digits and _")
    value: str | None = Field(None, description="any text")
    value_from: ValueFrom | None = Field(
        None, description="where the value comes from, instead of `value`"
    )

    @property
    def optional(self) -> bool:
        """Whether the trainer runs without it."""
        source = self.value_from
        reference = source and (source.config_map_key_ref or source.secret_key_ref)
        return bool(reference and reference.optional)


class Ref(Model):
    """A ConfigMap or Secret."""

    name: Subdomain = Field(description="name of the ConfigMap or Secret")
    optional: bool = Field(False, description="no error if there is none")


class EnvFrom(OneOf):
    """A ConfigMap or a Secret whose keys become variables; `env` wins over them."""

    one_of = ("config_map_ref", "secret_ref")

    prefix: Variable | None = Field(None, description="put before every key")
    config_map_ref: Ref | None = Field(None, description="a ConfigMap")
    secret_ref: Ref | None = Field(None, description="a Secret")


def check_environment(variables: list[EnvVar], *, for_run: bool) -> None:
    """Refuse what is given twice, is set elsewhere, or would show a secret. Raises ValueError.

    `for_run`: for a program of the user's own, which has no `trainer` to set the launcher's times in.
    """
    first: dict[str, int] = {}
    for index, one in enumerate(variables):
        where = f"env[{index}].name={one.name!r}"
        if first.setdefault(one.name, index) != index:
            raise ValueError(f"{where}: given twice, first in env[{first[one.name]}]")
        is_time = for_run and one.name in _TIMES
        if not is_time and (elsewhere := set_elsewhere(one.name)):
            raise ValueError(f"{where}: cannot be set in env; {elsewhere}")
        if one.value is not None and is_credential(one.name, one.value):
            # Without the value, which would end in a log.
            raise ValueError(
                f"{where}: its value looks like a credential, which everybody who may read the job "
                f"could see; put it in a Secret and set env[{index}].valueFrom.secretKeyRef"
            )


_ALWAYS_SECRET = re.compile(r"(.*_)?(PASSWORD|PASSWD|PASSPHRASE|SECRET)", re.IGNORECASE)
_SECRET_IF_LONG = re.compile(r"(.*_)?(TOKEN|API_?KEY|(ACCESS|PRIVATE|SECRET)_KEY)", re.IGNORECASE)
_SECRET_BY_ITSELF = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|sk-)[A-Za-z0-9_-]{16,}"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|://[^\s/:@]+:[^\s/@]+@"
)


def is_credential(name: str, value: str) -> bool:
    """Return whether a literal should be a Secret; a word such as PAD_TOKEN=<pad> should not."""
    if (name == KEY or _ALWAYS_SECRET.fullmatch(name)) and value:
        return True
    if _SECRET_IF_LONG.fullmatch(name) and re.fullmatch(r"\S{16,}", value):
        return True
    return bool(_SECRET_BY_ITSELF.search(value))


_TIMES = {
    variable(name) for name in ("rendezvous_timeout", "last_call", "peer_timeout", "peer_losses")
}
_CONTRACT = {
    "PET_NNODES": "set nodes",
    "PET_NPROC_PER_NODE": "set procsPerNode",
    "PET_MAX_RESTARTS": "set faults.maxRestarts",
    "PET_SHUTDOWN_TIMEOUT": "set faults.gracePeriod",
    "WORLD_SIZE": "set nodes and procsPerNode",
    "LOCAL_WORLD_SIZE": "set procsPerNode",
}
_LAUNCHER = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHER_PREFIXES = ("PET_", "TRAINER_", "MUSTER_", "TORCHELASTIC_", "JOB_COMPLETION_INDEX")


def set_elsewhere(name: str) -> str | None:
    """Return where a variable of the contract is set instead, or None when `env` may hold it."""
    if name == KEY:
        return None
    if name in _CONTRACT:
        return _CONTRACT[name]
    for field in Settings.model_fields:
        if name == variable(field):
            return f"set trainer.{to_camel(field)}"
    if name.startswith(variable(OWN)):
        return f"set trainer.{to_camel(name.removeprefix(PREFIX).lower())}"
    if name in _LAUNCHER or name.startswith(_LAUNCHER_PREFIXES):
        return "the launcher sets it"
    return None
