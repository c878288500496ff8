"""The forward pass of decoders."""
