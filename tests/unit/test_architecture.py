"""The house rules that a machine can check: who imports whom, and how long a file is."""

# What the renderer may take from the trainer: the parts that import no torch.
SHARED = {"contract", "environment", "exits", "modes", "partition", "settings", "sizing"}
