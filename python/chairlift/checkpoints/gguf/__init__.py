"""GGUF files: tensors, configuration, tokenizer and chat template in one file."""
