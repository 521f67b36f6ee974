"""What a launcher starts from: a command line, variables, the code that came with the job."""
