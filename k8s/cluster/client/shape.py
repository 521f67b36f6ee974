"""Check the types of the fields that are read from an API's answers, in one place.

answer = checked(json, where="GET /api/v1/namespaces/lab/pods")
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from k8s.cluster.client.api import Object
from trainer.config.exits import Exit, Fault

_Name = Annotated[str, Field(pattern=r"^[^/\x00]*$")]  # becomes the name of a file
_Label = Annotated[str, Field(max_length=63)]


class _Shape(BaseModel):
    """The fields that are read; others are ignored. A number is not accepted as text, as in the API.

    A default is None, not an empty list or model, because pydantic would copy that for each object.
    """

    model_config = ConfigDict(strict=True, extra="ignore", alias_generator=to_camel)


class _Owner(_Shape):
    kind: str
    name: str
    uid: str = ""


class _Metadata(_Shape):
    labels: dict[str, _Label] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    uid: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    resource_version: str = ""
    name: _Name


class _OfList(_Shape):
    token: str = Field("", alias="continue")
    resource_version: str = ""


class _Variable(_Shape):
    name: str
    value: str = ""


class _Container(_Shape):
    name: _Name = ""
    command: list[str] | None = None
    env: list[_Variable] | None = None
    usage: dict[str, str] | None = None


class _PodSpec(_Shape):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    termination_grace_period_seconds: int = 30


class _Template(_Shape):
    spec: _PodSpec | None = None


class _WithTemplate(_Shape):
    template: _Template | None = None


class _JobTemplate(_Shape):
    spec: _WithTemplate | None = None


class _ReplicatedJob(_Shape):
    name: str
    template: _JobTemplate | None = None


class _Component(_Shape):
    template: Object


class _Elastic(_Shape):
    min_replicas: int = 0
    max_replicas: int = 0


class _Spec(_PodSpec):
    suspend: bool = False
    template: _Template | None = None
    replicated_jobs: list[_ReplicatedJob] | None = None
    tasks: list[_WithTemplate] | None = None
    components: list[_Component] | None = None
    elastic_policy: _Elastic | None = None
    run_policy: Object | None = None


class _Reason(_Shape):
    reason: str = ""
    message: str = ""


class _Start(_Shape):
    started_at: str = ""


class _End(_Reason):
    exit_code: int
    started_at: str = ""
    finished_at: str = ""


class _ContainerState(_Shape):
    running: _Start | None = None
    terminated: _End | None = None
    waiting: _Reason | None = None


class _ContainerStatus(_Shape):
    name: str = ""
    restart_count: int = 0
    state: _ContainerState | None = None
    last_state: _ContainerState | None = None


class _Condition(_Reason):
    type: str
    status: str = ""
    last_transition_time: str = ""
    last_update_time: str = ""


class _VolcanoState(_Reason):
    phase: str = ""
    last_transition_time: str = ""


class _Replicas(_Shape):
    failed: int = 0


class _Status(_Reason):
    phase: str = ""
    start_time: str = ""
    state: _VolcanoState | None = None
    active: int = 0
    pending: int = 0
    ready: int = 0
    running: int = 0
    succeeded: int = 0
    terminating: int = 0
    resetting_count: int = 0
    conditions: list[_Condition] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    restarts: int = 0
    retry_count: int = 0
    failed: int = 0
    replicated_jobs_status: list[Object] | None = None
    jobs_status: list[Object] | None = None
    replica_statuses: dict[str, _Replicas] | None = None
    allocatable: dict[str, str] | None = None
    hard: dict[str, str] | None = None
    used: dict[str, str] | None = None


class _Involved(_Shape):
    name: str = ""
    kind: str = ""


class _Found(_Reason):
    api_version: str = ""
    kind: str = ""
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None
    type: str = ""
    involved_object: _Involved | None = None
    last_timestamp: str = ""
    event_time: str = ""
    count: int = 0
    containers: list[_Container] | None = None
    provisioner: str = ""


class _Resource(_Shape):
    name: str
    kind: str
    namespaced: bool


class _Version(_Shape):
    version: str


class _List(_Shape):
    metadata: _OfList | None = None
    items: list[_Found] | None = None
    resources: list[_Resource] | None = None
    versions: list[_Version] | None = None


def checked(answer: Object, *, where: str, one: bool) -> Object:
    """Return an answer, an object or a list, without its nulls: null means absent.

    Raises Fault(69) if a field that is read does not have the type that Kubernetes gives it.
    """
    try:
        kept: Object = _without_nulls(answer)
        (_Found if one else _List).model_validate(kept)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"]) or "the answer"
        problem = (
            f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}, not {first['input']!r:.60}"
        )
        raise Fault(Exit.PEER, f"{where} was answered with another type: {problem}") from None
    except RecursionError:
        raise Fault(Exit.PEER, f"{where} was answered with JSON nested too deeply") from None
    return kept


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
