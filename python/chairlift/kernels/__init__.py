"""Kernels as functions of tensors: `cpu` on this machine's cores, `cuda` on a GPU.

Both implement `Kernels`; a model uses one of them. The names exported here are the CPU's.
"""

from chairlift.kernels.cpu import Linear, add_rms_norm, rms_norm, rope_, silu_mul
from chairlift.kernels.interface import ExpertLayers, Kernels, LinearLayer

__all__ = [
    "ExpertLayers",
    "Kernels",
    "Linear",
    "LinearLayer",
    "add_rms_norm",
    "rms_norm",
    "rope_",
    "silu_mul",
]
