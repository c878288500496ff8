"""Requests that a gateway sends to two servers, first to one that computes the prompt."""
