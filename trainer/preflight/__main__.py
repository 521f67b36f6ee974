"""Preflight without a run: `python -m trainer.preflight`, see `check.py`."""

from trainer.config.ending import exit_process
from trainer.imports import without_collection

with without_collection():
    from trainer.preflight.check import main

if __name__ == "__main__":
    exit_process(main())
