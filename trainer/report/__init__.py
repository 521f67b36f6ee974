"""Report a run's events: to a file, stdout, a terminal, Prometheus and TensorBoard."""
