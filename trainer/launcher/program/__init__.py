"""What a launcher is told: a command line, variables, the code that travelled with the job."""
