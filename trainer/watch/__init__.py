"""Watch a run while it trains: hanging and slow ranks, stop signals, memory, usage."""
