"""The error for a job file, an option or a request that is wrong: exit code 64.

raise config_error(f"nodes={nodes}: must be at least 1")
"""

from trainer.config.exits import Exit, Fault


def config_error(text: str) -> Fault:
    """Return a Fault(64); `text` is one line: what was wrong, where, the value, what would work."""
    return Fault(Exit.CONFIG, text)
