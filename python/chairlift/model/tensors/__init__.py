"""The tensors that a checkpoint must hold for a model."""
