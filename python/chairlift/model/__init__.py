"""Language models: their configuration, weights, forward pass, KV cache and tokenizer."""
