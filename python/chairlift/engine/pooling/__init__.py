"""Vectors and scores: requests that end with their prompt."""
