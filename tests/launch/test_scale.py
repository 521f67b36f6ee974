"""A thousand nodes meet: a round costs each node few messages, and the server little time."""

import pytest

from tests.launch.scale import measure
from trainer.rendezvous.membership import Rules
from trainer.rendezvous.server import silence_limit

pytestmark = pytest.mark.slow


def test_messages_and_bytes_do_not_grow_with_the_nodes_and_the_time_only_with_their_number() -> (
    None
):
    few, many = measure(64), measure(2048)
    assert many.messages / many.nodes < few.messages / few.nodes + 1
    assert many.kilobytes / many.nodes < 1.5 * few.kilobytes / few.nodes
    # 2,048 take a quarter of a second here; the limit leaves room for other tests
    assert many.round_s < 25
    assert many.busy < 0.2
    assert many.loss_s < 5


def test_silence_is_judged_later_only_where_heartbeats_would_take_a_core() -> None:
    limits = {
        nodes: silence_limit(Rules(nodes, nodes, elastic=False, peer_timeout=3, last_call=5))
        for nodes in (1, 1000, 5000, 10_000)
    }
    assert limits == {1: 3, 1000: 3, 5000: pytest.approx(4.5), 10_000: pytest.approx(9)}
