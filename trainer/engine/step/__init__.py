"""A step: compiled as one (`compiled.py`), and what may be wrong with its samples or its gradient."""
