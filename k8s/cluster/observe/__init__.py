"""What a job shows of itself: logs, progress, and why it failed."""
