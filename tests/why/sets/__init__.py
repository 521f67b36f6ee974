"""Sets of failures, each by an author who did not know the table of causes."""
