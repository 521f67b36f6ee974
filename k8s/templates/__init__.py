"""One folder per launcher, and the pod that the launchers of a cluster share (`pod.yaml.j2`)."""
