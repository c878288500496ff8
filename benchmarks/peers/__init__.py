"""Chairlift beside the systems that a user would pick instead; see docs/benchmarks/README.md."""
