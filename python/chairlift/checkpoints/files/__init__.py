"""The files of a model: where they are, their JSON, names of tensors."""
