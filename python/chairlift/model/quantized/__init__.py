"""Checkpoints of AWQ, GPTQ, compressed-tensors and FP8: codes, scales and zero points apart."""
