"""Attention over paged keys and values, behind one interface per device."""

from chairlift.attention.backend import AttentionBackend
from chairlift.attention.metadata import AttentionMetadata

__all__ = ["AttentionBackend", "AttentionMetadata"]
