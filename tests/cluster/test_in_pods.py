"""What is asked of running pods on a cluster: a profile of the next steps.

make test-cluster IMAGE=registry.example/muster:cpu
"""

import pytest

from tests.cluster.conftest import Verbs
from tests.cluster.running import endless, submitted, trained_to, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_rank_is_profiled_when_asked(verbs: Verbs, claim: str) -> None:
    with submitted(verbs, "job", endless("profiled", claim)) as name:
        trained_to(verbs, name, 5)
        lines = verbs.does("profile", name).splitlines()
        assert len(lines) == 2
        assert all("asked; its ranks write the next 5 steps to /out" in line for line in lines)

        def profiled() -> list[int]:
            found = [one for one in verbs.events(name) if one["event"] == "profile"]
            return [one["last"] - one["first"] for one in found]

        assert until(profiled, 60, lambda: verbs.events(name)) == [4]
