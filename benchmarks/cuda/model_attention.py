"""The attention of a model's shape on this machine's GPU.

python -m benchmarks.cuda.model_attention MODEL
"""

import json
import sys
from collections.abc import Iterator

import torch
from chairlift.api.choices import Device, Dtype
from chairlift.api.config import EngineConfig
from chairlift.checkpoints.checkpoint import check_files
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.loading.devices import resolve_device
from chairlift.kernels.cuda.sources import ModelKernels
from chairlift.model.config import ModelConfig

from benchmarks.cuda.attention import (
    Batch,
    attention_seconds,
    copy_bytes_per_s,
    product_operations_per_s,
)

_REPEAT = 15


def measure(model: str) -> Iterator[dict[str, str | float]]:
    """Yield one result for each batch, with its share of the roofline.

    Raises:
        ConfigError: There is no GPU, or its kernels do not support the model's shape.
    """
    settings = EngineConfig(device=Device.CUDA, dtype=Dtype.BFLOAT16)
    folder = resolve_model(model)
    config = ModelConfig.load(folder, settings.dtype)
    check_files(folder, may_lack_all=True)
    gpu = resolve_device(settings, config).accelerator
    assert gpu is not None, "the settings ask for one"
    gpu.load(ModelKernels(torch.bfloat16, torch.bfloat16, config.spec.head_dims))
    with torch.inference_mode():
        bandwidth = copy_bytes_per_s(gpu, _REPEAT)
        rate = product_operations_per_s(gpu, _REPEAT)
        for batch in _batches(config):
            seconds = attention_seconds(batch, gpu, _REPEAT)
            fastest = max(batch.kv_bytes / bandwidth, batch.num_operations / rate)
            yield {
                "name": batch.name,
                "shape": f"{batch.num_heads}/{batch.num_kv_heads} x {batch.head_dim}",
                "seconds": seconds,
                "gb_per_s": batch.kv_bytes / seconds / 1e9,
                "gflop_per_s": batch.num_operations / seconds / 1e9,
                "fraction_of_roofline": fastest / seconds,
            }


def _batches(config: ModelConfig) -> list[Batch]:
    heads = config.spec.shape[2:]
    return [
        Batch("decode 1 x 1k", [1024], [1], *heads),
        Batch("decode 32 x 4k", [4096] * 32, [1] * 32, *heads),
        Batch("decode 64k + 15 x 4k", [65_536, *[4096] * 15], [1] * 16, *heads),
        Batch("prefill 8k", [8192], [8192], *heads),
    ]


if __name__ == "__main__":
    for result in measure(sys.argv[1]):
        print(json.dumps(result), flush=True)
