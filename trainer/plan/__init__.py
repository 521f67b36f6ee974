"""Compute mesh, mode, memory and schedule for a number of ranks. Imports no torch."""
