#!/usr/bin/env python3
"""Render a job file for a launcher: `python render.py k8s/jobs/02-digits-ddp.yaml --plan`.

The code is in `k8s/cli/command.py`.
"""

import gc
import os
import sys

# Garbage collection and pydantic's search for plugins would take a fifth of this process's time.
gc.disable()
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from k8s.cli.command import main  # noqa: E402

if __name__ == "__main__":
    code = main()
    gc.freeze()  # otherwise all objects are collected once more at exit
    sys.exit(code)
