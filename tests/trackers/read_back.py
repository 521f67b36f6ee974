"""Prints the contents of a tracker's store as JSON, read with the tracker's own library.

build/trackers/bin/python -m tests.trackers.read_back mlflow STORE

    [{"parameters": {"mode": "single"}, "points": {"train/loss": [[1, 2.3], ...]}, "state": "FINISHED"}]
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def of_mlflow(store: Path) -> Iterator[dict[str, Any]]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    for experiment in client.search_experiments(filter_string="name != 'Default'"):
        for run in client.search_runs([experiment.experiment_id]):
            points = {
                name: [
                    [one.step, one.value]
                    for one in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            }
            yield {"parameters": run.data.params, "points": points, "state": run.info.status}


def of_trackio(store: Path) -> Iterator[dict[str, Any]]:
    import os

    os.environ["TRACKIO_DIR"] = str(store)
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    for project in SQLiteStorage.get_projects():
        for run in trackio.Api().runs(project):
            points: dict[str, list[Any]] = {}
            for row in SQLiteStorage.get_logs(project, run.name, run_id=run.id):
                for name in row.keys() - {"step", "timestamp"}:
                    points.setdefault(name, []).append([row["step"], row[name]])
            yield {"parameters": run.config, "points": points}


def of_wandb(store: Path) -> Iterator[dict[str, Any]]:
    """Each offline attempt has its own file; files with the same id are one run."""
    runs: dict[str, dict[str, Any]] = {}
    for file in sorted(store.glob("wandb/offline-run-*/run-*.wandb")):
        run = runs.setdefault(file.stem, {"parameters": {}, "points": {}})
        for record in _records(file.read_bytes()):
            for item in record.run.config.update:
                run["parameters"][item.key or item.nested_key[0]] = json.loads(item.value_json)
            row = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            for name in row.keys() - {"step"}:
                if not name.startswith("_"):
                    run["points"].setdefault(name, []).append([row["step"], row[name]])
    yield from runs.values()


def _records(file: bytes) -> Iterator[Any]:
    """Yield the records of a file: LevelDB's log format, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    block, at, parts = 32768, 7, b""
    while at + 7 <= len(file):
        if block - at % block < 7:  # the rest of a block is padding
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", file[at : at + 7])
        parts += file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a complete record, or its last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


if __name__ == "__main__":
    read = {"mlflow": of_mlflow, "trackio": of_trackio, "wandb": of_wandb}[sys.argv[1]]
    print(json.dumps(list(read(Path(sys.argv[2])))))
