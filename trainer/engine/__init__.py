"""The training run: the loop (`loop.py`), and the parts that it calls."""
