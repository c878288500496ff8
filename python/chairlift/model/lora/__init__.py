"""Adapters (LoRA): small updates of a model's linear layers, chosen per request."""
