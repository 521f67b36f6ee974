"""Plans to manifests and scripts, and these to files."""
