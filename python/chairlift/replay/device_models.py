"""Models of a device that runs a model: the time of a step, and the memory of keys and values.

Bandwidth and arithmetic are those that programs reach, about 80 % of the bandwidth and half of the
arithmetic that a data sheet names. Nothing is fitted to the results that they stand for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from chairlift.replay.format import StepTime


class DeviceName(StrEnum):
    """A device and the model that it runs, in 16 bits."""

    A100_OPT_13B = "a100-40g/opt-13b"
    A100_MISTRAL_7B = "a100-80g/mistral-7b"
    A10G_LLAMA_7B = "a10g/llama-7b"
    H100_8B = "h100/8b"


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What a replay knows of a device."""

    step_time: StepTime
    kv_bytes_per_token: int
    kv_memory: int
    """Bytes beside the weights."""


def _device(
    *, step_ms: float, token_us: float, context_ns: float, kv_kib: int, kv_gib: float
) -> DeviceModel:
    return DeviceModel(
        StepTime(
            fixed_s=step_ms * 1e-3,
            per_token_s=token_us * 1e-6,
            per_context_token_s=context_ns * 1e-9,
        ),
        kv_bytes_per_token=kv_kib * 2**10,
        kv_memory=round(kv_gib * 2**30),
    )


DEVICE_MODELS: Final[Mapping[DeviceName, DeviceModel]] = MappingProxyType(
    {
        # 25.7 GB of weights at 1.5 TB/s, 26 GFLOP a token at 150 TFLOP/s, keys at 1.3 TB/s.
        DeviceName.A100_OPT_13B: _device(
            step_ms=17, token_us=170, context_ns=630, kv_kib=800, kv_gib=12
        ),
        # 14.5 GB at 1.6 TB/s, 14.5 GFLOP a token at 150 TFLOP/s; 8 heads of keys and values.
        DeviceName.A100_MISTRAL_7B: _device(
            step_ms=9, token_us=97, context_ns=87, kv_kib=128, kv_gib=53
        ),
        # 13.5 GB at 0.5 TB/s, 13.5 GFLOP a token at 60 TFLOP/s.
        DeviceName.A10G_LLAMA_7B: _device(
            step_ms=27, token_us=225, context_ns=1050, kv_kib=512, kv_gib=7
        ),
        # 16 GB at 3.2 TB/s, 16 GFLOP a token at 400 TFLOP/s.
        DeviceName.H100_8B: _device(step_ms=5, token_us=40, context_ns=40, kv_kib=128, kv_gib=50),
    }
)
"""By name."""
