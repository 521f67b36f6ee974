"""What is kept of a run while it goes on, with the standard library alone: its events and figures."""
