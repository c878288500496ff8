"""What the bench commands measure with: the product has no use for it."""
