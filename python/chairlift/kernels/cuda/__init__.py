"""The kernels of a GPU: plain CUDA C++ (`cuda/` in the sources), compiled on the user's machine.

| module | what it is |
| --- | --- |
| `sources` | which files there are, and which instantiations a model needs |
| `build` | source to machine code by NVRTC, kept on disk |
| `launch` | machine code to a running kernel; tests put an emulation in its place |
| `ops` | each kernel as an operation on tensors |
| `device` | memory, order and recorded launches |
"""
