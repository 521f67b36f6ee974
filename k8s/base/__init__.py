"""What all of k8s stands on: YAML, names, quantities, the base of the job file's models."""
