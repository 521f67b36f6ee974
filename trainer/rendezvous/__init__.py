"""How the nodes of a job meet, and learn of lost ones: a server on node 0, a client on each node."""
