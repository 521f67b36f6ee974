"""Mutated inputs for whatever reads a stranger's bytes: `make fuzz`."""
