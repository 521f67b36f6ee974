"""Operating jobs on a cluster: the verbs behind `python -m k8s`, by the official client.

Every request is bounded and tried again where that helps; a namespace is never guessed.
"""
