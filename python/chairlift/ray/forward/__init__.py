"""Forwards requests to replicas, each to the one that the router chooses; knows nothing of Ray."""
