"""Refuses unknown fields, as a cluster would, in objects of Kubernetes' own kinds.

Left out is Pod Security: tests/unit/k8s/render holds every launcher's pod against `restricted`.
"""

from functools import cache

import kubernetes_validate

from tests.standin.objects import Object
from tests.standin.server import Refusal

_VERSION = "1.34"
# It reads megabytes of schema anew for every object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


def check(one: Object) -> None:
    """Raise Refusal for an object that a cluster would refuse; objects of other APIs pass."""
    group = one["apiVersion"].partition("/")[0] if "/" in one["apiVersion"] else ""
    if "." in group.removesuffix(".k8s.io"):
        return
    try:
        kubernetes_validate.validate(one, _VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Refusal(422, f"{one['kind']} is invalid: {error.message}") from None
    except kubernetes_validate.SchemaNotFoundError:
        return
