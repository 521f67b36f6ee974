"""The command lines: render.py's options and reports, and how a cluster's jobs are shown."""
