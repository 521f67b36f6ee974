"""How often the ranks agree whether to stop: quick steps share an all-reduce."""

import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from trainer.watch.stop import Stop


@pytest.fixture
def runtime() -> Iterator[Any]:
    """Yield what a rank of one has, with a group of its own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield SimpleNamespace(control=dist.group.WORLD, is_main=True)
    dist.destroy_process_group()


@pytest.mark.parametrize(("enough", "sent"), [(10.0, 4), (0.001, 24)])
def test_quick_steps_share_an_agreement(
    enough: float, sent: int, runtime: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("trainer.watch.stop._EVERY_S", enough)
    calls, reduce = [], dist.all_reduce

    def count(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return reduce(*args, **options)

    monkeypatch.setattr(dist, "all_reduce", count)
    stop = Stop(runtime, lambda: None)
    for _ in range(24):
        assert not stop.agreed()
        time.sleep(0.002)
    stop.finish()
    assert len(calls) == sent  # the first step counts as a slow one


def test_a_request_is_heard_within_nine_quick_steps_and_a_save_granted_once(runtime: Any) -> None:
    stop = Stop(runtime, lambda: None)
    granted, asked = 0, False
    for _ in range(30):
        assert not stop.agreed(save=not granted)
        granted += stop.save
    assert granted == 1
    stop.request(signal.SIGTERM, None)
    for _ in range(9):
        asked = asked or stop.agreed()
    stop.finish()
    assert asked
