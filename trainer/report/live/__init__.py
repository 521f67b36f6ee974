"""Events and figures of a run that goes on; needs only the standard library."""
