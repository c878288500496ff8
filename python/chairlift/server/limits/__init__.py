"""Limits on requests: phases, queues, quotas, shares."""
