"""`vllm.grpc.engine.VllmEngine`: what gateways of the vLLM family call a worker by."""

from chairlift.server.protocols.vllm.service import VllmEngineServicer

__all__ = ["VllmEngineServicer"]
