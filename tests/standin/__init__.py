"""A stand-in for a cluster: its API over HTTP, controllers, and a kubelet.

The pods are real: processes with their own namespaces, address and root, in which the trainer trains.
The controllers are ours, modelled on the real ones (Kubernetes 1.34, JobSet 0.12, training
operator 1.9, Trainer 2.3, Volcano 1.13); each file lists what it leaves out. A job that passes here has
not been seen on a cluster. The API alone, without pods, serves the unit tests of `python -m k8s`.

    python -m tests.standin make test-cluster       # root, on Linux
"""
