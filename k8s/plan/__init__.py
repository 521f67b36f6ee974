"""The plan: what a job file amounts to on one launcher."""
