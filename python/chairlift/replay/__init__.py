"""Traces of a scheduler's work: recorded, drawn, and replayed without a model."""
