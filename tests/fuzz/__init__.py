"""Mutated inputs for all code that reads untrusted bytes: `make fuzz`."""
