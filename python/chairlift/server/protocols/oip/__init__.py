"""The Open Inference Protocol (KServe v2), with the stream of Triton.

The model has the tensors of Triton's backend for vLLM: clients of that one work as they are.
"""

from chairlift.server.protocols.oip.service import InferenceServicer

__all__ = ["InferenceServicer"]
