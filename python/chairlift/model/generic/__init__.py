"""Decoders that `transformers` computes, on our paged attention."""
