"""How the nodes of a job meet and keep track of each other."""
