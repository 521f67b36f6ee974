"""Parts of a task that several tasks use."""
