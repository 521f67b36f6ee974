"""What watches a run: the machine, the links, the other ranks, the numbers, the memory."""
