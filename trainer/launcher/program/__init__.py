"""What a launcher starts from: a command line, variables, the code that travelled with the job."""
