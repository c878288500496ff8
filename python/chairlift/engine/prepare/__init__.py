"""From a request as a client writes it to one that the scheduler can take."""
