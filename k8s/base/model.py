"""Base classes and field types of the job file's model: strict, frozen, in lower camel case.

render.py --schema
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from k8s.base import names, quantity
from k8s.base.yaml_text import Real, Whole


class Model(BaseModel):
    """A mapping of the job file. Unknown keys are refused."""

    # Strict, because YAML already has types: `nodes: "2"` or `gpu: true` is a mistake.
    # Deferred, because the job file's validator includes those of its parts; building each one too would
    # double the time of the process.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, defer_build=True
    )


class OneOf(Model):
    """A mapping with exactly one of the fields in `one_of`; if that is empty, of all its fields."""

    one_of: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        fields = type(self).model_fields
        choices = {str(fields[name].alias): name for name in self.one_of or fields}
        given = [key for key, name in choices.items() if getattr(self, name) is not None]
        if len(given) != 1:
            seen = ", ".join(given) or "none"
            raise ValueError(f"must have exactly one of {', '.join(choices)}; has {seen}")
        return self


def number_as_text(value: Any) -> Any:
    """Return a number, such as a quantity or an argument, as it is written; other values as they are."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(as_written(value))
    return value


def as_written(value: Any) -> Any:
    """Return a number as text if Python would write it in another way; other values as they are."""
    return value.text if isinstance(value, (Whole, Real)) else value


def _cores(text: str) -> str:
    quantity.cores(text)
    return text


def _size(text: str) -> str:
    quantity.size(text)
    return text


Word = Annotated[
    str, BeforeValidator(number_as_text), WithJsonSchema({"type": ["string", "number"]})
]
Scalar = Annotated[str | bool | int | float | None, BeforeValidator(as_written)]
_QUANTITY_SCHEMA = WithJsonSchema(
    {
        "type": ["string", "number"],
        "pattern": r"^[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
    }
)
Cores = Annotated[str, AfterValidator(_cores), BeforeValidator(number_as_text), _QUANTITY_SCHEMA]
Size = Annotated[str, AfterValidator(_size), BeforeValidator(number_as_text), _QUANTITY_SCHEMA]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Key = Annotated[str, AfterValidator(names.qualified)]
LabelValue = Annotated[str, AfterValidator(names.label_value)]
Subdomain = Annotated[str, AfterValidator(names.subdomain)]
LabelSubdomain = Annotated[str, AfterValidator(names.subdomain_in_label)]
DnsLabel = Annotated[str, AfterValidator(names.dns_label)]
HostPath = Annotated[str, AfterValidator(names.absolute_path)]
Image = Annotated[str, AfterValidator(names.image)]
Device = Annotated[str, AfterValidator(names.device_resource)]
DataKey = Annotated[str, AfterValidator(names.data_key)]
Variable = Annotated[str, AfterValidator(names.variable)]
