"""The weights of decoders: what a checkpoint holds, packed for the kernels."""
