"""Checkpoints: folders that exist only once they are complete, loadable by any mode and world size.

`manifest` is the format, `store` where it lies, `state` what is in it, `write` and `read` move it,
`saver` writes while the training goes on, `retention` says which ones stay.

A checkpoint is a file per rank that wrote (`rank-00000.data`: the tensors' bytes, one after the
other) and `muster.json`: the run's progress, where each tensor lies, and sizes and checksums of the
files and of itself. No part of it can carry code: it holds bytes and JSON, and no pickle is read.
"""
