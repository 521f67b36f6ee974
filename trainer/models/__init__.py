"""From a task's network to the model that a strategy wraps: pieces, stages, tensor plans, operators."""
