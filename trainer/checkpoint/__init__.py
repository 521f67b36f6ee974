"""Checkpoints: folders that exist only once they are complete, loadable by any mode and world size.

`saver` saves while the training goes on: `state` collects the state, `staging` copies it, `write` writes
it to a `store` (a folder, or a URL: `remote`), `retention` removes old ones. `find` finds the newest one
that is undamaged, and `read` loads it. `manifest` is the format.

A checkpoint is a file from each rank that wrote (`rank-00000.data`: the tensors' bytes, one after the
other) and `muster.json`: the run's progress, the place of each tensor, and sizes and checksums of the
files and of itself. It is bytes and JSON. No pickle is read, so a checkpoint cannot carry code.
"""
