"""Trackio. Reads TRACKIO_DIR, TRACKIO_SPACE_ID, TRACKIO_SERVER_URL and others of its own.

TRAINER_TRACKER=trackio python -m trainer && trackio show
"""

from collections.abc import Sequence

import trackio

from trainer.report.trackers import Figures, Start


class Run:
    def __init__(self, start: Start) -> None:
        self._run = trackio.init(
            project=start.project,
            name=f"{start.name}-{start.id}",  # resumes the run of this name
            resume="allow",
            config=dict(start.parameters),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def send(self, figures: Sequence[Figures]) -> None:
        for one in figures:
            self._run.log(dict(one.values), step=one.step)

    def finish(self, code: int) -> None:  # noqa: ARG002  # it has no exit codes
        self._run.finish()
