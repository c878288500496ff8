"""For random shapes the memory plan equals what loading and a full step allocate."""

import json

import torch
from chairlift.api.config import Dtype, EngineConfig
from chairlift.attention.cpu import CpuBackend
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.forward.transformer import Transformer
from chairlift.model.memory.plan import plan_memory
from chairlift.model.parts.buffers import Buffers
from chairlift.model.parts.recurrent import allocate_states, num_states
from chairlift.model.tensors.model_tensors import model_tensors, stored_shapes
from chairlift.model.weights.layers import load_weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.model.test_memory_plan import loaded_bytes, rope_bytes

FAMILIES = (
    *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    *("Lfm2ForCausalLM", "Qwen3_5ForCausalLM"),
)
RECURRENT = {"Lfm2ForCausalLM": "conv", "Qwen3_5ForCausalLM": "linear_attention"}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}


def load_config(folder, values, dtype=Dtype.AUTO):
    (folder / "config.json").write_text(json.dumps(values))
    return ModelConfig.load(folder, dtype)


@st.composite
def config_values(draw):
    """Draw a small config.json; attention or the feed-forward may be the wider half."""
    kv_heads = draw(st.integers(1, 3))
    architecture = draw(st.sampled_from(FAMILIES))
    num_layers = draw(st.integers(1, 4))
    values = {
        "architectures": [architecture],
        "vocab_size": draw(st.integers(8, 300)),
        "hidden_size": draw(st.integers(1, 96)),
        "intermediate_size": draw(st.integers(1, 300)),
        "num_hidden_layers": num_layers,
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.integers(1, 4)),
        "head_dim": 16 * draw(st.integers(1, 4)),
        "max_position_embeddings": draw(st.integers(32, 200)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "sliding_window": draw(st.none() | st.integers(1, 100)),
    }
    if architecture in RECURRENT:
        kinds = st.sampled_from(["full_attention", RECURRENT[architecture]])
        others = draw(st.lists(kinds, min_size=num_layers - 1, max_size=num_layers - 1))
        values["layer_types"] = draw(st.permutations(["full_attention", *others]))
        values["block_auto_adjust_ff_dim"] = False
        values["conv_bias"] = draw(st.booleans())
        values["linear_num_key_heads"] = kv_heads
        values["linear_num_value_heads"] = kv_heads * draw(st.integers(1, 3))
        values["linear_key_head_dim"] = draw(st.integers(1, 40))
        values["linear_value_head_dim"] = 16 * draw(st.integers(1, 4))
    elif architecture.startswith("Qwen"):
        values["use_sliding_window"] = draw(st.booleans())
        values["max_window_layers"] = draw(st.integers(0, num_layers))
    return values


def storage_bytes(parts):
    """Count the memory under tensors; views of one memory count once."""
    storages = {}

    def count(part):
        if isinstance(part, torch.Tensor):
            storage = part.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        else:
            for own in part:
                count(own)

    count(parts)
    return sum(storages.values())


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=config_values(),
    dtype=st.sampled_from([Dtype.FLOAT32, Dtype.BFLOAT16]),
    quantize=st.sampled_from(["none", "int8", "int4"]),
    budget=st.integers(1, 64),
    num_rows=st.integers(1, 64),
)
def test_the_plan_equals_what_is_allocated(tmp_path, values, dtype, quantize, budget, num_rows):
    config = load_config(tmp_path, values, dtype)
    shapes = stored_shapes(model_tensors(config.spec, config.names))
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    engine = EngineConfig(
        quantize=quantize,
        max_num_batched_tokens=budget,
        max_num_seqs=num_rows,
        kv_cache_memory=2**22,
    )
    backend = CpuBackend()
    plan = plan_memory(engine, config, backend)
    model = Transformer(config, load_weights(tmp_path, config, quantize=engine.quantize), backend)
    weight_bytes = loaded_bytes(model.weights) + rope_bytes(config)
    assert plan.weight_bytes == weight_bytes
    cache = allocate_kv_cache(config, backend, plan.num_blocks, engine.block_size)
    states = allocate_states(config.spec, num_states(num_rows) + plan.num_state_snapshots)
    assert plan.state_bytes == sum(state.nbytes for layer in states for state in layer)
    assert plan.kv_cache_bytes == cache.nbytes
    stream_dtype = model.weights.final_norm.weight.dtype
    buffers = Buffers.empty(config.spec, budget, config.dtype, torch.device("cpu"), stream_dtype)
    logits = model.logits(buffers.normed[:num_rows])
    allocated = storage_bytes(buffers) + logits.nbytes
    assert abs(plan.activation_bytes - allocated) <= 0.01 * allocated


def test_a_llama_of_8_billion_weights_has_65536_numbers_per_token(tmp_path):
    config = load_config(tmp_path, LLAMA_8B)
    engine = EngineConfig(max_num_batched_tokens=1000, max_num_seqs=1)
    logits = 4 * config.spec.vocab_size
    plan = plan_memory(engine, config, CpuBackend(), 2**40)
    assert plan.activation_bytes - logits == 1000 * 2 * 65_536
    buffers = Buffers.empty(config.spec, 10, config.dtype, torch.device("cpu"))
    assert storage_bytes(buffers) == 10 * 2 * 65_536
