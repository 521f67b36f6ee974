"""Render plans as manifests and scripts, and write these to files."""
