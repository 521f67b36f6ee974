"""Submitting jobs: their folder to a claim, a secret for their nodes, then all objects or none."""
