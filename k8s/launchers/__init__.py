"""The launchers, a folder each: LAUNCHER (`__init__.py`), JOB_KIND (`job_kind.py`), templates.

`shared/` holds the templates that several of them include.
"""

from functools import cache
from importlib import import_module
from pathlib import Path

from k8s.base.errors import config_error
from k8s.jobfile.spec import JobSpec
from k8s.plan.job_kind import JobKind
from k8s.plan.launcher import Launcher

TEMPLATES = Path(__file__).parent


def find(name: str) -> Launcher:
    """Return a launcher by its name. Raises Fault(64)."""
    if name not in known():
        raise config_error(f"launcher={name!r}: no such launcher; choose {', '.join(known())}")
    launcher = import_module(f"k8s.launchers.{name}").LAUNCHER
    assert isinstance(launcher, Launcher)  # noqa: S101  # tells mypy
    return launcher


@cache
def known() -> list[str]:
    """Return the names of all launchers."""
    return sorted(file.parent.name for file in TEMPLATES.glob("*/__init__.py"))


def job_kinds() -> list[JobKind]:
    """Return the job kinds of the launchers of a cluster, by the launchers' names."""
    return [kind for name in known() if (kind := find(name).job_kind) is not None]


def check_labels(spec: JobSpec) -> None:
    """Refuse a label that a controller of any launcher sets: a job file may be rendered for several."""
    for key in spec.labels:
        domain = key.rpartition("/")[0]
        if domain and any(domain.endswith(kind.label_domains) for kind in job_kinds()):
            raise config_error(f"labels.{key}: set by muster or a controller; choose another key")
