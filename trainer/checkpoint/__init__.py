"""Checkpoints: folders that exist only when they are complete. Any mode and world size can load them.

`saver` saves while training continues: `state` collects the state, `staging` copies it, `write` writes
it to a `store` (a folder, or a URL: `remote`), `retention` removes old checkpoints. `find` finds the
newest undamaged checkpoint, and `read` loads it. `manifest` is the format.

A checkpoint has one file from each rank that wrote (`rank-00000.data`: the bytes of its tensors, one
after the other) and `muster.json`: the run's progress, the place of each tensor, the sizes and checksums
of the files, and its own checksum. No pickle is read, so a checkpoint cannot carry code.
"""
