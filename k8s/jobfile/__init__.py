"""The job file: read, checked, and typed, a file a group of its keys."""
