"""How the nodes of a job meet, and notice lost nodes: a server on node 0, a client on each node."""
