"""The job file's model: which keys there are, what each may hold, and its JSON Schema.

Unknown keys are refused. Rules between keys are the plan's business (`k8s/plan.py`).

    render.py --schema > job.schema.json
"""

import difflib
import reprlib
import typing
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from k8s import launchers, names, quantity
from trainer.exits import Exit, Fault
from trainer.modes import MODES
from trainer.settings import Settings, parse, variable

# Where the pod and the container have the data and the checkpoints.
DATA = "/data"
OUT = "/out"


def _quantity(value: Any) -> Any:
    """Keep a quantity as written; YAML reads some of them as numbers."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def _cores(text: str) -> str:
    quantity.cores(text)
    return text


def _size(text: str) -> str:
    quantity.size(text)
    return text


_QUANTITY_SCHEMA = WithJsonSchema(
    {
        "type": ["string", "number"],
        "pattern": r"^[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
    }
)
_Cores = Annotated[str, AfterValidator(_cores), BeforeValidator(_quantity), _QUANTITY_SCHEMA]
_Size = Annotated[str, AfterValidator(_size), BeforeValidator(_quantity), _QUANTITY_SCHEMA]
_Key = Annotated[str, AfterValidator(names.qualified)]
_HostPath = Annotated[str, AfterValidator(names.absolute_path)]
_Claim = Annotated[str, AfterValidator(names.subdomain)]


class _Model(BaseModel):
    # Strict: YAML already has types, and `nodes: "2"` or `gpu: true` is a slip worth hearing of.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


class Resources(_Model):
    """What one node (a pod) has."""

    gpu: int = Field(0, ge=0, description="accelerators per node")
    gpu_resource: Annotated[str, AfterValidator(names.device_resource)] = Field(
        "nvidia.com/gpu", description="what the cluster calls them"
    )
    cpu: _Cores | None = Field(None, description="cores per node, e.g. 8 or 500m")
    memory: _Size | None = Field(None, description="memory per node, /dev/shm included, e.g. 64Gi")
    shm: _Size | None = Field(
        None, description="size of /dev/shm (default: a quarter of memory, at most 32Gi)"
    )


class EnvVar(_Model):
    """An environment variable; its value reaches the trainer unchanged."""

    name: Annotated[str, AfterValidator(names.variable)] = Field(
        description="letters, digits and _"
    )
    value: str = Field(description="any text")


def _one_source(volume: "DataVolume") -> None:
    fields = type(volume).model_fields.items()
    given = [str(field.alias) for name, field in fields if getattr(volume, name) is not None]
    if len(given) != 1:
        choices = ", ".join(str(field.alias) for _, field in fields)
        raise ValueError(f"must have exactly one of {choices}; has {', '.join(given) or 'none'}")


class DataVolume(_Model):
    """Where the data set is: one of these."""

    pvc: _Claim | None = Field(None, description="name of a PersistentVolumeClaim")
    host_path: _HostPath | None = Field(None, description="folder on every machine")

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        _one_source(self)
        return self


class CheckpointVolume(DataVolume):
    """Where the run folder is kept: one of these."""

    empty_dir: _Size | None = Field(None, description="size of a folder that is lost with its pod")


class Faults(_Model):
    """What happens when something fails. Seconds, where it is about time."""

    max_restarts: int = Field(
        3, ge=0, le=2**31 - 1, description="counted failures that are retried"
    )
    deadline: int | None = Field(None, ge=1, description="the job is stopped after this time")
    ttl: int | None = Field(
        None, ge=0, le=2**31 - 1, description="a job that ended is deleted after"
    )
    grace_period: int = Field(
        120, ge=1, description="between SIGTERM and SIGKILL; the checkpoint is saved within it"
    )


def _not_reserved(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        domain = key.rpartition("/")[0]
        if domain == "app.kubernetes.io" or domain.endswith(
            ("batch.kubernetes.io", "kubeflow.org")
        ):
            raise ValueError(f"labels.{key}: set by muster or a controller; choose another key")
    return labels


class JobSpec(_Model):
    """A training job."""

    name: Annotated[str, AfterValidator(names.job_name)] = Field(
        description="the job's name, from which every object's is made"
    )
    namespace: Annotated[str, AfterValidator(names.namespace)] | None = Field(
        None, description="namespace of every object (default: the one kubectl is set to)"
    )
    launcher: str = Field("job", description="what runs it: a folder's name in k8s/templates")
    image: Annotated[str, AfterValidator(names.image)] | None = Field(
        None, description="the trainer's image; every launcher but local needs it"
    )
    nodes: int = Field(1, ge=1, le=100_000, description="machines, or pods")
    procs_per_node: int | None = Field(
        None, ge=1, description="ranks per node (default: one per GPU, else one)"
    )
    resources: Resources = Field(Resources(), description="what one node has")
    trainer: dict[str, str | bool | int | float | None] = Field(
        {}, description="what is trained and how: the TRAINER_* settings in lower camel case"
    )
    env: list[EnvVar] = Field([], description="more environment variables")
    data: DataVolume | None = Field(None, description=f"the data set, mounted read-only at {DATA}")
    checkpoints: CheckpointVolume | None = Field(
        None, description=f"the run folder, mounted at {OUT} (default: lost with the pod)"
    )
    faults: Faults = Field(Faults(), description="what happens when something fails")
    labels: Annotated[
        dict[_Key, Annotated[str, AfterValidator(names.label_value)]], AfterValidator(_not_reserved)
    ] = Field({}, description="labels of every object and pod")
    annotations: dict[_Key, str] = Field({}, description="annotations of every object and pod")

    @model_validator(mode="after")
    def _check_environment(self) -> typing.Self:
        first: dict[str, int] = {}
        for index, one in enumerate(self.env):
            where = f"env[{index}].name={one.name!r}"
            if first.setdefault(one.name, index) != index:
                raise ValueError(f"{where}: given twice, first in env[{first[one.name]}]")
            if elsewhere := _set_elsewhere(one.name):
                raise ValueError(f"{where}: not for env; {elsewhere}")
        return self


_CONTRACT = {
    "PET_NNODES": "set nodes",
    "PET_NPROC_PER_NODE": "set procsPerNode",
    "PET_MAX_RESTARTS": "set faults.maxRestarts",
    "PET_SHUTDOWN_TIMEOUT": "set faults.gracePeriod",
    "WORLD_SIZE": "set nodes and procsPerNode",
    "LOCAL_WORLD_SIZE": "set procsPerNode",
}
_AGENT = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT")
_AGENT_PREFIXES = ("PET_", "TRAINER_", "MUSTER_", "TORCHELASTIC_", "JOB_COMPLETION_INDEX")


def _set_elsewhere(name: str) -> str | None:
    """Return where a variable of the contract is set instead, or None when `env` may hold it."""
    if name in _CONTRACT:
        return _CONTRACT[name]
    for field in Settings.model_fields:
        if name == variable(field):
            return f"set trainer.{to_camel(field)}"
    if name in _AGENT or name.startswith(_AGENT_PREFIXES):
        return "the launcher sets it"
    return None


def validate(values: dict[str, Any]) -> JobSpec:
    """Check a job file's values. Raises Fault(64), its text beginning with the key's path."""
    try:
        return JobSpec.model_validate(values)
    except ValidationError as error:
        raise Fault(Exit.CONFIG, _explain(error)) from None


def settings_of(spec: JobSpec) -> Settings:
    """Return the trainer's settings, checked as the trainer will. Raises Fault(64)."""
    fields = {to_camel(field): field for field in Settings.model_fields}
    texts: dict[str, str] = {}
    for key, value in spec.trainer.items():
        if key not in fields:
            near = difflib.get_close_matches(to_camel(key), fields, n=1, cutoff=0.5)
            hint = f"; did you mean trainer.{near[0]}?" if near else ""
            raise Fault(Exit.CONFIG, f"trainer.{key}: no such setting{hint}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if value is not None and text != "":
            texts[fields[key]] = text
    return parse(texts, label=label)


def label(field: str) -> str:
    """Return how the job file calls a setting."""
    return f"trainer.{to_camel(field)}"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, the trainer's own settings included."""
    schema = JobSpec.model_json_schema(by_alias=True)
    trainer = Settings.model_json_schema(by_alias=True)
    trainer["description"] = schema["properties"]["trainer"]["description"]
    trainer["properties"]["mode"]["enum"] = ["auto", *MODES]
    schema["properties"]["trainer"] = trainer
    schema["properties"]["launcher"]["enum"] = launchers.known()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_SAYINGS = {
    "string_type": "must be text; write it in quotes",
    "int_type": "must be a whole number",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "list_type": "must be a list",
}


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    location = [part for part in first["loc"] if part != "[key]"]
    if location[:1] == ["trainer"]:
        location = location[:2]  # below it are the names of the types that were tried
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:]
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        known = _keys_at(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        whole = path.removesuffix(str(location[-1])) + near[0] if near else ""
        hint = f"did you mean {whole}?" if near else f"choose {', '.join(known)}"
        return f"{path}: no such key; {hint}"
    if kind == "missing":
        return f"{path}: missing; it is {_field_at(location).description}"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("greater than or equal to", "at least")
    message = message.replace("less than or equal to", "at most")
    message = _SAYINGS.get(kind, message)
    if location[:1] == ["trainer"] and len(location) > 1:
        message = "must be one value: text, a number, true or false"
    if kind == "value_error" and isinstance(value, dict):
        return message if message.startswith(path) else f"{path}: {message}"
    return f"{path}={reprlib.repr(value)}: {message}"


def _keys_at(location: list[Any]) -> list[str]:
    model = _model_of(_field_at(location).annotation) if location else JobSpec
    return [str(field.alias) for field in model.model_fields.values()] if model else []


def _field_at(location: list[Any]) -> Any:
    model: type[BaseModel] | None = JobSpec
    field: Any = None
    for part in location:
        if isinstance(part, str) and model:
            field = next(field for field in model.model_fields.values() if field.alias == part)
            model = _model_of(field.annotation)
    return field


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as `list[EnvVar]` or `DataVolume | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_of, typing.get_args(annotation))), None)
