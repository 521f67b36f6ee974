"""Serve a run's metrics on a port of every node, for Prometheus (TRAINER_METRICS_PORT).

TRAINER_METRICS_PORT=9400 python -m trainer &  curl localhost:9400/metrics
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trainer.report.events import Event
from trainer.report.live.figures import Figures
from trainer.report.web_server import served

log = logging.getLogger("trainer")


class _Collector(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for one in self._figures.families():
            family = CounterMetricFamily if one.name.endswith("_total") else GaugeMetricFamily
            metric = family(one.name, one.text, labels=[one.label] if one.label else [])
            for value, figure in one.values.items():
                metric.add_metric([value] if one.label else [], figure)
            yield metric


@contextlib.contextmanager
def serving(port: int, run_folder: Path) -> Iterator[Callable[[Event], None]]:
    """Yield a function that takes events; serve them as metrics on `port`, at any path.

    If the port is in use, a warning is logged and the run goes on.
    """
    registry, figures = CollectorRegistry(), Figures(run_folder)
    ProcessCollector(registry=registry)
    registry.register(_Collector(figures))
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(served(make_wsgi_app(registry), port=port))
        except OSError as error:
            log.warning(
                "TRAINER_METRICS_PORT=%s: %s; nothing is served there", port, error.strerror
            )
        yield figures.take
