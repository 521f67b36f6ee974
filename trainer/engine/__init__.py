"""The training run: the loop and what follows a step."""
