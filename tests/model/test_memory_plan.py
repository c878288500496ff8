"""Where the bytes go, said before and found after."""

from dataclasses import fields

import pytest
import torch
from chairlift import _core
from chairlift.api.config import Dtype, EngineConfig, Quantize
from chairlift.api.errors import ConfigError
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cuda import CudaBackend
from chairlift.kernels import Linear
from chairlift.kernels.cpu import Experts
from chairlift.model.config import ModelConfig
from chairlift.model.memory.plan import plan_memory
from chairlift.model.parts.norms import Norm
from chairlift.model.specs.rope import cos_sin_table
from chairlift.model.weights.layers import load_weights
from torch import Tensor

from tests.model.families import FAMILIES

MIB, GIB = 2**20, 2**30


def loaded_bytes(part):
    """Bytes of all tensors and packed layers below a dataclass."""
    match part:
        case Tensor():
            return part.nbytes
        case Linear() | Norm() | Experts():
            return part.num_bytes
        case tuple():
            return sum(loaded_bytes(item) for item in part)
        case None:
            return 0
    return sum(loaded_bytes(getattr(part, field.name)) for field in fields(part))


def rope_bytes(model):
    """Bytes of the tables of RoPE."""
    tables = model.spec.rope_tables
    return sum(cos_sin_table(*own[:2], model.max_model_len).nbytes for own in tables)


@pytest.mark.parametrize("quantize", Quantize)
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_plan_is_what_is_loaded(pretrained, name, dtype, quantize):
    folder = pretrained(name)[1]
    model = ModelConfig.load(folder, dtype)
    plan = plan_memory(EngineConfig(quantize=quantize), model, CpuBackend())
    weights = load_weights(folder, model, quantize=quantize)
    assert plan.weight_bytes == loaded_bytes(weights) + rope_bytes(model)


def test_fewer_bits_take_fewer_bytes(pretrained):
    model = ModelConfig.load(pretrained("llama")[1])
    plans = [plan_memory(EngineConfig(quantize=q), model, CpuBackend()) for q in Quantize]
    none, int8, int4 = (plan.weight_bytes for plan in plans)
    assert none > int8 > int4


def test_a_packed_layer_fills_whole_panels():
    smallest = _core.linear_bytes(1, 64, 4)
    assert smallest > 64 * 4
    assert smallest % (64 * 4 + 4) == 0
    assert _core.linear_bytes(1024, 64, 2) == 1024 * (64 * 2 + 4)
    with pytest.raises(ValueError, match="item_size"):
        _core.linear_bytes(1, 1, 8)


def test_a_wider_step_takes_more(pretrained):
    model = ModelConfig.load(pretrained("llama")[1])
    plans = [
        plan_memory(EngineConfig(max_num_batched_tokens=tokens), model, CpuBackend(), GIB)
        for tokens in (64, 128, 256)
    ]
    small, middle, large = (plan.activation_bytes for plan in plans)
    assert large - middle == 2 * (middle - small) > 0


def test_swapped_blocks_are_counted_where_they_are(pretrained):
    model = ModelConfig.load(pretrained("llama")[1])
    without = EngineConfig(kv_cache_memory=GIB)
    swapping = EngineConfig(kv_cache_memory=GIB, swap_memory=3 * MIB)
    none, cpu = (plan_memory(settings, model, CpuBackend()) for settings in (without, swapping))
    assert (none.num_host_blocks, none.swap_bytes) == (0, 0)
    assert cpu.swap_bytes == cpu.num_host_blocks * cpu.block_bytes
    assert 3 * MIB - cpu.block_bytes < cpu.swap_bytes <= 3 * MIB
    assert cpu.total_bytes == none.total_bytes + cpu.swap_bytes
    backend = CudaBackend(torch.device("cpu"))
    none, gpu = (
        plan_memory(settings, model, backend, 4 * GIB, is_dedicated=True)
        for settings in (without, swapping)
    )
    assert gpu.num_host_blocks == cpu.num_host_blocks
    assert gpu.swap_bytes == 4 * MIB, "PyTorch pins powers of two"
    assert gpu.total_bytes == none.total_bytes
    gpu.check(gpu.total_bytes, gpu.swap_bytes)
    with pytest.raises(ConfigError, match=f"^swap_memory: expected at most {4 * MIB - 1} bytes"):
        gpu.check(gpu.total_bytes, gpu.swap_bytes - 1)
    with pytest.raises(ConfigError, match=f"swap {cpu.swap_bytes}; lower .*swap_memory"):
        cpu.check(cpu.total_bytes - 1)


def test_what_does_not_fit_is_refused(pretrained):
    model = ModelConfig.load(pretrained("llama")[1])
    plan = plan_memory(EngineConfig(kv_cache_memory=GIB), model, CpuBackend())
    plan.check(plan.total_bytes)
    with pytest.raises(ConfigError, match=f"expected at most {plan.total_bytes - 1} bytes"):
        plan.check(plan.total_bytes - 1)
