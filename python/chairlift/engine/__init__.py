"""The engine loop: requests in, steps of the model, events out."""
