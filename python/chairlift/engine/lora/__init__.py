"""The adapters (LoRA) of an engine."""
