"""Prefill apart from decode: a server that computes prompts for others, and one that lets it."""
