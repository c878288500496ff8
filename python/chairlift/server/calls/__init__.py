"""Requests from their start to their last event."""
