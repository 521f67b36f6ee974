"""Imports without garbage collection are left out of later collections, which work as usual."""

import gc

import pytest

from trainer.imports import without_collection


def test_nothing_is_collected_within_the_block_and_what_it_made_is_left_out() -> None:
    collections: list[str] = []
    gc.callbacks.append(lambda phase, _: collections.append(phase))
    before = gc.get_freeze_count()
    try:
        with without_collection():
            made: list[list[int]] = [
                [] for _ in range(100_000)
            ]  # many times the threshold of a collection
        assert not collections
        assert gc.get_freeze_count() - before >= len(made)
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()
        gc.unfreeze()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), without_collection():
        raise ImportError
    gc.unfreeze()
    assert gc.isenabled()
