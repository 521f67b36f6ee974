#!/usr/bin/env python3
"""Render a job file for a launcher: `python render.py k8s/jobs/digits-ddp.yaml --plan`.

What it does is in `k8s/cli/command.py`.
"""

import gc
import os
import sys

gc.disable()  # a process of a third of a second; collecting takes a tenth of it
# Nor does it have plugins of pydantic, which are looked for in every package that is installed.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from k8s.cli.command import main  # noqa: E402

if __name__ == "__main__":
    code = main()
    gc.freeze()  # else the interpreter looks through everything once more as it ends
    sys.exit(code)
