"""What every part of the job file's model is made of: strict, frozen, in lower camel case.

render.py --schema
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from k8s import names


class Model(BaseModel):
    """A mapping of the job file. Unknown keys are refused."""

    # Strict: YAML already has types, and `nodes: "2"` or `gpu: true` is a slip worth hearing of.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


Key = Annotated[str, AfterValidator(names.qualified)]
LabelValue = Annotated[str, AfterValidator(names.label_value)]
Subdomain = Annotated[str, AfterValidator(names.subdomain)]
