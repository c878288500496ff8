"""Encoders: models that see all of a text at once and give vectors or scores, and no text."""
