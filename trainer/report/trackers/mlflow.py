"""MLflow. Reads MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_NAME and others of its own.

TRAINER_TRACKER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db python -m trainer
"""

import os
from collections.abc import Sequence

import mlflow
from mlflow.entities import Metric, Param

from trainer.config.exits import Exit
from trainer.report.trackers import Figures, Start

_PARAMETERS, _METRICS = 100, 1000  # at most in a request
_TAG = "muster_id"


class Run:
    def __init__(self, start: Start) -> None:
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", start.project)
        experiment = mlflow.set_experiment(project, os.environ.get("MLFLOW_EXPERIMENT_ID"))
        mlflow.end_run()  # one that failed to start completely
        self._client = mlflow.MlflowClient()
        # MLflow's own id of the run is not known before it answers.
        found = self._client.search_runs(
            [experiment.experiment_id], f"tags.{_TAG} = '{start.id}'", max_results=1
        )
        run = mlflow.start_run(
            run_id=found[0].info.run_id if found else None,
            run_name=os.environ.get("MLFLOW_RUN_NAME", start.name),
            tags={_TAG: start.id},
        )
        self._id = run.info.run_id
        there = found[0].data.params if found else {}  # a parameter cannot change
        parameters = [Param(*item) for item in start.parameters.items() if item[0] not in there]
        for first in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + _PARAMETERS])

    def send(self, figures: Sequence[Figures]) -> None:
        metrics = [
            Metric(name, value, int(one.time * 1000), one.step)
            for one in figures
            for name, value in one.values.items()
        ]
        for first in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _METRICS])

    def finish(self, code: int) -> None:
        states = {int(Exit.DONE): "FINISHED", int(Exit.STOPPED): "KILLED"}
        mlflow.end_run(states.get(code, "FAILED"))
