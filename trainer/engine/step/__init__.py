"""A step: compiled as a whole (`compiled.py`); unreadable samples and nonfinite gradients."""
