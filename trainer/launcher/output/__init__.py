"""Where what the ranks write goes: prefixed, kept in the run folder, read for events."""
