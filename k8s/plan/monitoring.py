"""A job's dashboard for Grafana and its alerts for Prometheus, from monitoring.yaml.

render.py job.yaml --set 'metrics={port: 9400, dashboard: true, alerts: true}'
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from k8s.base.yaml_text import read_one, read_text

# Prometheus makes it of the pods' label app.kubernetes.io/instance, which the PodMonitor names.
_INSTANCE = "app_kubernetes_io_instance"
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3  # of a panel, in Grafana's grid of 24 columns


def rules(name: str, namespace: str | None) -> list[dict[str, Any]]:
    """Return the alerts of a job as a PrometheusRule holds them."""
    return [
        {
            "alert": one["name"],
            "expr": _of_job(one["expr"], name, namespace),
            "for": one["for"],
            "labels": {"severity": one["severity"], "job_name": name},
            "annotations": {
                "summary": f"{name}: {one['summary']}",
                "description": f"What to do: python -m k8s why {name}",
            },
        }
        for one in _table()["alerts"]
    ]


def dashboard(name: str, namespace: str | None) -> str:
    """Return the dashboard of a job as JSON; its data source is chosen in Grafana."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": one["title"],
            "datasource": source,
            "gridPos": {
                "x": number % _ACROSS * _WIDTH,
                "y": number // _ACROSS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": one["unit"]}, "overrides": []},
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": source,
                    "expr": _of_job(expr, name, namespace),
                    "legendFormat": legend,
                }
                for index, (legend, expr) in enumerate(one["series"].items())
            ],
        }
        for number, one in enumerate(_table()["panels"])
    ]
    choice = {"name": "datasource", "label": "Data source", "type": "datasource"}
    board = {
        "title": f"muster: {name}",
        "tags": ["muster"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [{**choice, "query": "prometheus"}]},
        "panels": panels,
    }
    return json.dumps(board)


def _of_job(expr: str, name: str, namespace: str | None) -> str:
    own = f'{_INSTANCE}="{name}"' + (f',namespace="{namespace}"' if namespace else "")
    return " ".join(expr.split()).replace("$job", own)


@cache
def _table() -> Any:
    file = Path(__file__).with_suffix(".yaml")
    return read_one(read_text(file, label=file.name), label=file.name)
