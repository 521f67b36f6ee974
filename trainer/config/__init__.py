"""What is set and agreed on: settings, modes, exit codes. The renderer imports it too, so no torch."""
