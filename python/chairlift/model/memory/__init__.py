"""How much memory a model takes."""
