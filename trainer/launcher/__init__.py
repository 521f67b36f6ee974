"""The node's supervisor: starts, watches and signals its ranks; keeps their output and exit codes."""
