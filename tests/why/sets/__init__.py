"""Sets of failures; the author of each set did not know the table of causes.

Most scripts have no `if __name__ == "__main__":`. So their data workers are forked, as all were before
Python 3.14.
"""
