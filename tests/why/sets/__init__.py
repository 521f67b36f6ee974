"""Sets of failures; the author of each set did not know the table of causes."""
