#!/usr/bin/env python3
"""Render a job file for a launcher: `python render.py k8s/jobs/digits-ddp.yaml --plan`.

What it does is in `k8s/cli/command.py`.
"""

import sys

from k8s.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
