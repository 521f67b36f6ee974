"""The trainer: one PyTorch training loop, its mode chosen by environment variables.

python -m trainer            # this process (or one rank, under torchrun)
python -m trainer.launch     # a container's entrypoint: starts this node's ranks
"""
