"""From a job file to what a launcher needs: job file -> spec -> plan -> manifests.

Never imports torch, and `kubernetes` (over a second) only where a cluster is talked to.
"""
