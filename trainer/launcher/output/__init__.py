"""What happens to the ranks' output: it is prefixed, kept in the run folder, and read for events."""
