"""Ways to the same engines on Ray Serve, side by side."""
