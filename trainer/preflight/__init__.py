"""Whether the machines and the links between them are fit for a run."""
