"""What a job of this size comes to: mesh, mode, memory, schedule. Imports no torch."""
