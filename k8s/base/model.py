"""What every part of the job file's model is made of: strict, frozen, in lower camel case.

render.py --schema
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.alias_generators import to_camel

from k8s.base import names, quantity


class Model(BaseModel):
    """A mapping of the job file. Unknown keys are refused."""

    # Strict: YAML already has types, and `nodes: "2"` or `gpu: true` is a slip worth hearing of.
    # Deferred: the job file's own validator holds all of them, and building each besides takes as long
    # again as the rest of the process.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, defer_build=True
    )


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
Cores = Annotated[str, AfterValidator(_cores), BeforeValidator(_quantity), _QUANTITY_SCHEMA]
Size = Annotated[str, AfterValidator(_size), BeforeValidator(_quantity), _QUANTITY_SCHEMA]
Key = Annotated[str, AfterValidator(names.qualified)]
LabelValue = Annotated[str, AfterValidator(names.label_value)]
Subdomain = Annotated[str, AfterValidator(names.subdomain)]
DnsLabel = Annotated[str, AfterValidator(names.dns_label)]
HostPath = Annotated[str, AfterValidator(names.absolute_path)]
Image = Annotated[str, AfterValidator(names.image)]
Device = Annotated[str, AfterValidator(names.device_resource)]
DataKey = Annotated[str, AfterValidator(names.data_key)]
Variable = Annotated[str, AfterValidator(names.variable)]
