"""Which scripts of the sets `make test` starts: one for each cause. `make test-why` starts all.

@pytest.mark.parametrize("name", chosen({"no compiler": {"compiler"}}, tested={"raised"}))
"""

import os
from collections.abc import Collection, Mapping

# Every script, as `make test-why` sets it.
WHOLE = os.environ.get("MUSTER_TEST_WHY") == "whole"


def chosen(causes: Mapping[str, Collection[str]], *, tested: Collection[str]) -> list[str]:
    """Return the names of the scripts to start: the first for each cause that is not in `tested`.

    `causes` has the right answers for each script, by name.
    """
    seen = set(tested)
    names = []
    for name, right in causes.items():
        if WHOLE or not seen.issuperset(right):
            names.append(name)
            seen |= {*right}
    return names
