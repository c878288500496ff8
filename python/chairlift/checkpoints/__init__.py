"""Files of checkpoints: bytes, names and types of tensors, without a model."""
