"""The job file's model: which keys there are, what each may hold, and its JSON Schema.

Unknown keys are refused. Rules between keys are the plan's business (`k8s/plan.py`).

    render.py --schema > job.schema.json
"""

import difflib
import reprlib
import typing
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from k8s import launchers, names, quantity
from k8s.environment import EnvFrom, EnvVar, check_environment
from k8s.model import Key, LabelValue, Model, Subdomain
from k8s.patch import PodPatch
from k8s.scheduling import Scheduling
from trainer.environment import parse
from trainer.exits import Exit, Fault
from trainer.modes import MODES
from trainer.settings import Settings

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
_HostPath = Annotated[str, AfterValidator(names.absolute_path)]


class Resources(Model):
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


def _one_source(volume: "DataVolume") -> None:
    fields = type(volume).model_fields.items()
    given = [str(field.alias) for name, field in fields if getattr(volume, name) is not None]
    if len(given) != 1:
        choices = ", ".join(str(field.alias) for _, field in fields)
        raise ValueError(f"must have exactly one of {choices}; has {', '.join(given) or 'none'}")


class DataVolume(Model):
    """Where the data set is: one of these."""

    pvc: Subdomain | None = Field(None, description="name of a PersistentVolumeClaim")
    host_path: _HostPath | None = Field(None, description="folder on every machine")

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        _one_source(self)
        return self


class CheckpointVolume(DataVolume):
    """Where the run folder is kept: one of these."""

    empty_dir: _Size | None = Field(None, description="size of a folder that is lost with its pod")


class Faults(Model):
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
    suspend: bool = Field(False, description="made, but not started until it is unsuspended")


_CONTROLLERS = ("batch.kubernetes.io", "jobset.sigs.k8s.io", "kubeflow.org", "volcano.sh")


_KUEUE = {
    "kueue.x-k8s.io/queue-name": "scheduling.queue",
    "kueue.x-k8s.io/priority-class": "scheduling.priority",
}


def _not_reserved(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if key in _KUEUE:
            raise ValueError(f"labels.{key}: set {_KUEUE[key]} instead")
        domain = key.rpartition("/")[0]
        if domain == "app.kubernetes.io" or domain.endswith(_CONTROLLERS):
            raise ValueError(f"labels.{key}: set by muster or a controller; choose another key")
    return labels


class JobSpec(Model):
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
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="when the image is pulled (default: Kubernetes' own, by the tag)"
    )
    image_pull_secrets: list[Subdomain] = Field(
        [], description="names of Secrets for the image's registry"
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
    env_from: list[EnvFrom] = Field(
        [], description="ConfigMaps and Secrets whose every key is a variable"
    )
    data: DataVolume | None = Field(None, description=f"the data set, mounted read-only at {DATA}")
    checkpoints: CheckpointVolume | None = Field(
        None, description=f"the run folder, mounted at {OUT} (default: lost with the pod)"
    )
    scheduling: Scheduling = Field(Scheduling(), description="where and when the pods run")
    faults: Faults = Field(Faults(), description="what happens when something fails")
    labels: Annotated[dict[Key, LabelValue], AfterValidator(_not_reserved)] = Field(
        {}, description="labels of every object and pod"
    )
    annotations: dict[Key, str] = Field({}, description="annotations of every object and pod")

    pod_patch: PodPatch = Field(
        PodPatch(),
        description="a strategic merge into the pod, for what has no key here; applied last",
    )

    @model_validator(mode="after")
    def _check_environment(self) -> typing.Self:
        check_environment(self.env)
        return self


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
