"""The verbs of `python -m k8s`, a function each.

python -m k8s submit build/digits-ddp/jobset.yaml --wait
"""

from k8s.cli.verbs import change, show
from k8s.cli.verbs.common import app

__all__ = ["app", "change", "show"]
