"""Records what a scheduler was asked and did, and runs it again without a model."""
