"""Parts of decoder layers: their weights, and what they compute."""
