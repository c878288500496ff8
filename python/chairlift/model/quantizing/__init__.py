"""Quantizes the linear layers of a model once, with errors compensated, to be stored."""
