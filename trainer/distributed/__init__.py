"""One rank's place among the others: process group, precision, optimiser."""
