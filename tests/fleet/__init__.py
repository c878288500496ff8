"""Real servers behind the real router, beside the simulation of the same work."""
