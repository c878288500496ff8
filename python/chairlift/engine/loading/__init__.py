"""Brings a model into memory, on its device."""
