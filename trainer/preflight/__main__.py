"""Preflight by itself: `python -m trainer.preflight`, see `check.py`."""

from trainer.config.ending import leave
from trainer.preflight.check import main

if __name__ == "__main__":
    leave(main())
