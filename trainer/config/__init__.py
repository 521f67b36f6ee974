"""Settings, modes and exit codes. The renderer imports them too, so this package imports no torch."""
