"""The trainer: one PyTorch training loop; environment variables choose its mode.

python -m trainer            # this process (or one rank, under torchrun)
python -m trainer.launch     # a container's entrypoint: starts this node's ranks
"""
