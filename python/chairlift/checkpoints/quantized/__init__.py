"""Checkpoints of AWQ, GPTQ, compressed-tensors, FP8 and MXFP4: codes and scales apart."""
