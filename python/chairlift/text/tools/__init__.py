"""Functions in prompts, and calls of them in answers."""
