"""The costs that stand in a file are those of the models."""

import pytest

from trainer.config.catalogue import catalogue
from trainer.plan import costs


@pytest.mark.slow
def test_the_file_of_costs_is_what_the_models_cost() -> None:
    from trainer.tools.measure import sheet

    assert costs.FILE.read_bytes() == costs.text_of(sheet()), "run `make docs`"


def test_every_built_in_task_with_one_model_is_known_and_no_other() -> None:
    for name, entry in catalogue().items():
        assert bool(costs.pieces_of(name)) != entry.varies
    assert costs.pieces_of("my.module:Task") is None
