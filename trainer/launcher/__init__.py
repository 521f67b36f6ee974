"""A node among the others: the roll that node 0 keeps, and the agent that starts the ranks."""
