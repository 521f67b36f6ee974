"""Operating jobs on a cluster: what the verbs of `python -m k8s` do, with the official client.

Every request has a time limit and is retried where that helps. A namespace is never guessed.
"""
