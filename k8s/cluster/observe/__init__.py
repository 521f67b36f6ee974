"""What can be seen of a job: logs, progress, and why it failed."""
