"""A stand-in for a cluster, where there is none: its API over HTTP, controllers, and a kubelet.

The pods are real: processes with namespaces, an address and a root of their own, in which the trainer
trains. What decides about them is ours, written after what the controllers' own sources do
(Kubernetes 1.34, JobSet 0.12, training operator 1.9, Trainer 2.3, Volcano 1.13); each file says what it
leaves out. What passes here has not been seen on a cluster.

    python -m tests.standin make test-cluster       # root, on Linux
"""
