#!/usr/bin/env python3
"""Render a job file for a launcher: `python render.py k8s/jobs/digits-ddp.yaml --plan`.

What it does is in `k8s/command.py`.
"""

import gc
import sys

gc.disable()  # a process of a third of a second; collecting takes a tenth of it

from k8s.command import main  # noqa: E402

if __name__ == "__main__":
    code = main()
    gc.freeze()  # else the interpreter looks through everything once more as it ends
    sys.exit(code)
