"""Check the machines and the links between them before a run."""
