"""The JSON Schema of a job file, for editors.

render.py --schema > job.schema.json
"""

from functools import cache
from typing import Any

from k8s import launchers
from k8s.jobfile.spec import JobSpec
from k8s.jobfile.validate import OWN_KEY
from trainer.config.modes import MODES
from trainer.config.settings import Settings


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, the trainer's own settings included; not to be changed."""
    schema = JobSpec.model_json_schema(by_alias=True)
    trainer = Settings.model_json_schema(by_alias=True)
    trainer["description"] = schema["properties"]["trainer"]["description"]
    trainer["properties"]["mode"]["enum"] = ["auto", *MODES]
    # of your own task, which has its settings
    trainer["additionalProperties"] = False
    trainer["patternProperties"] = {f"^{OWN_KEY}$": {"type": ["string", "number", "boolean"]}}
    schema["properties"]["trainer"] = trainer
    schema["properties"]["launcher"]["enum"] = launchers.known()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
