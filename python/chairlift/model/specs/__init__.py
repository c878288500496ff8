"""What a model is, as data: its layers and their parts."""
