"""What a run reports: events, and where they go."""
