"""Kernels as functions of tensors: `cpu` on this machine's cores, `cuda` on a GPU.

Both offer `Kernels`, and a model is given one of them. What is named here is the CPU's.
"""

from chairlift.kernels.cpu import Linear, add_rms_norm, rms_norm, rope_, silu_mul
from chairlift.kernels.interface import Kernels, LinearLayer

__all__ = ["Kernels", "Linear", "LinearLayer", "add_rms_norm", "rms_norm", "rope_", "silu_mul"]
