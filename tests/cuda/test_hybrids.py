"""Small hybrids, layers of which have a recurrent state, on an emulated GPU."""

from dataclasses import replace

import pytest
import torch
from chairlift.api.config import Dtype, engine_config
from chairlift.api.errors import ConfigError
from chairlift.api.types import Request, Sampling, Stopping
from chairlift.engine.loading.devices import layer_unsupported_reason, resolve_device
from chairlift.model.config import ModelConfig
from chairlift.model.memory.plan import plan_memory
from transformers import (
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tests.cuda.emulated_device import EmulatedDevice
from tests.cuda.small_models import (
    NUM_TOKENS,
    VOCAB_SIZE,
    assert_alone_is_as_crowded,
    assert_answers_are_those_of,
    assert_likely,
    make,
    prompts,
    requests,
)
from tests.engine.drive import assert_empty, drain, end, greedy, run, token_ids
from tests.engine.test_faults import break_forward
from tests.engine.tiny_model import write_tokenizer
from tests.model import families

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 32,
}
ROPE = {
    "rope_type": "default",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [4, 2, 2],
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS = {
    "lfm2": Lfm2Config(
        **SIZES, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    ),
    "lfm2 with biases": Lfm2Config(
        **SIZES, full_attn_idxs=[0], conv_L_cache=5, conv_bias=True, block_auto_adjust_ff_dim=False
    ),
    "lfm2 moe": Lfm2MoeConfig(
        **SIZES, **EXPERTS, layer_types=["conv", "full_attention"], num_dense_layers=1
    ),
    # Groups.
    "granite": GraniteMoeHybridConfig(
        **SIZES,
        layer_types=["linear_attention", "full_attention"],
        shared_intermediate_size=48,
        num_local_experts=0,
        mamba_n_heads=4,
        mamba_d_head=64,
        mamba_d_state=24,
        mamba_n_groups=2,
        attention_multiplier=0.1,
    ),
    "granite, experts": GraniteMoeHybridConfig(
        **SIZES,
        layer_types=["full_attention", "linear_attention"],
        shared_intermediate_size=48,
        num_local_experts=6,
        num_experts_per_tok=2,
        mamba_n_heads=4,
        mamba_d_head=64,
        mamba_d_state=24,
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        attention_multiplier=0.1,
    ),
    "bamba": BambaConfig(
        **SIZES,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=64,
        mamba_d_state=24,
    ),
    # A state beside attention, without a norm, and five factors; an odd number of heads.
    "falcon": FalconH1Config(
        **SIZES,
        head_dim=64,
        mamba_d_ssm=48,
        mamba_n_heads=3,
        mamba_d_head=16,
        mamba_d_state=136,
        ssm_multipliers=[0.8, 1.1, 0.7, 0.9, 1.3],
    ),
    # Layers of one block each.
    "nemotron": NemotronHConfig(
        **SIZES,
        head_dim=64,
        layers_block_type=["mamba", "mlp", "attention", "mamba"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=24,
        n_groups=2,
    ),
    "nemotron, experts": NemotronHConfig(
        **SIZES,
        head_dim=64,
        layers_block_type=["moe", "linear_attention", "full_attention"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=24,
        n_groups=2,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        moe_shared_expert_intermediate_size=40,
        use_conv_bias=False,
    ),
    "qwen3.5": Qwen3_5TextConfig(
        **SIZES,
        **DELTA,
        head_dim=64,
        linear_conv_kernel_dim=3,
        rope_parameters=ROPE,
    ),
    # A gated shared expert.
    "qwen3.5 moe": Qwen3_5MoeTextConfig(
        **SIZES,
        **DELTA,
        **EXPERTS,
        head_dim=64,
        shared_expert_intermediate_size=48,
        rope_parameters=ROPE,
    ),
    "qwen3-next": Qwen3NextConfig(
        **SIZES,
        **DELTA,
        **EXPERTS,
        head_dim=64,
        shared_expert_intermediate_size=48,
        norm_topk_prob=False,
        mlp_only_layers=[1],
        rope_parameters=ROPE,
    ),
    # Shares up to 2.
    "olmo": OlmoHybridConfig(**SIZES, **DELTA, rope_parameters={"rope_theta": None}),
}


def write(folder, name):
    """Write a checkpoint, and return the same model with the same numbers."""
    return write_config(folder, MODELS[name])


def write_config(folder, config):
    """As `write`, for a configuration."""
    model = families.build_model(config)
    for _, parameter in families.perturbed(model):
        parameter.copy_(parameter.bfloat16())
    families.save(model, folder)
    write_tokenizer(folder, VOCAB_SIZE - 10)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_answers_and_log_probabilities_are_those_of_transformers(name, tmp_path):
    reference = write(tmp_path, name)
    engine = make(tmp_path, device="cuda", dtype="float16", prefix_cache=False)
    assert_answers_are_those_of(reference, engine, 0.01)


@pytest.mark.parametrize("name", ["lfm2", "granite", "qwen3.5"])
def test_answers_do_not_depend_on_the_batch(name, tmp_path, monkeypatch):
    write(tmp_path, name)
    assert_alone_is_as_crowded(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def falcon(tmp_path_factory):
    """A folder, and the same model by `transformers`."""
    folder = tmp_path_factory.mktemp("falcon")
    return folder, write(folder, "falcon")


def test_rows_of_projections_begin_where_vectors_may(falcon):
    engine = make(falcon[0])
    (mixer,) = {layer.recurrent for layer in engine.model_config.spec.layers}
    assert mixer.projected_size % 8 > 0
    assert engine.runner.model._buffers(1).projected.stride(0) % 8 == 0


def test_preemption_and_states_of_snapshots_change_no_answer(falcon):
    folder, reference = falcon
    block = make(folder).runner.kv_cache[:, :, 0].nbytes
    engine = make(folder, kv_cache_memory=12 * block, max_num_batched_tokens=24)
    shared = prompts(40)[0]
    asked = [[*shared, *prompt] for prompt in prompts(3, 6, 1, 9)]
    for _ in range(2):
        answers = run(engine, [greedy(prompt, 20, ignore_eos=True) for prompt in asked])
        for prompt, events in zip(asked, answers, strict=True):
            assert_likely(reference, prompt, token_ids(events))
    load = engine.load()
    assert min(load.num_prefix_hits, load.num_preemptions, load.num_state_snapshots) > 0
    assert_empty(engine)


def test_a_turn_of_a_conversation_begins_with_the_state_of_the_one_before(falcon):
    folder, reference = falcon
    engine, history = make(folder), prompts(70)[0]
    for cached in (0, 80, 112):
        events = run(engine, [greedy(history, 20, ignore_eos=True)])[0]
        assert end(events).usage.cached_tokens == cached
        assert_likely(reference, history, token_ids(events))
        history = [*history, *token_ids(events), *prompts(10)[0]]


def test_each_of_several_answers_has_the_state_of_the_prompt(falcon):
    folder, reference = falcon
    engine = make(folder, prefix_cache=False)
    prompt, stopping = prompts(37)[0], Stopping(max_tokens=NUM_TOKENS, ignore_eos=True)
    # Each answer is likely behind the prompt, and only behind it.
    asked = Request(prompt, Sampling(temperature=1.0, top_k=2, seed=3, n=3), stopping)
    events = run(engine, [asked])[0]
    answers = [token_ids([e for e in events if e.index == i]) for i in range(3)]
    assert len({tuple(answer) for answer in answers}) > 1
    for answer in answers:
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        ranks = (logits > logits.gather(1, torch.tensor(answer)[:, None])).sum(1)
        assert ranks.max() <= 2, "of two, but for a tie"
    assert_empty(engine)


def test_a_probe_and_a_step_that_fails_leave_no_state_behind(falcon):
    folder, reference = falcon
    engine, asked = make(folder), prompts(9, 40, 17)
    break_forward(engine, lambda call: call == 4)
    for prompt, events in zip(asked, run(engine, requests(asked)), strict=True):
        assert_likely(reference, prompt, token_ids(events))
    assert_empty(engine)
    request_id, got = engine.add(requests(asked)[1]).request_id, []
    for _ in range(4):
        got += token_ids(engine.step())
        engine.runner.probe()
    got += token_ids(drain(engine)[request_id])
    assert_likely(reference, asked[1], got)


def test_states_are_a_part_of_the_memory_of_a_gpu(falcon):
    folder, _ = falcon
    model = ModelConfig.load(folder, Dtype.FLOAT16)
    plans = []
    for changes in ({}, {"state_snapshots": 3}, {"prefix_cache": False}):
        settings = engine_config(device="cuda", max_num_seqs=30, **changes)
        place = resolve_device(settings, model, EmulatedDevice())
        # Less than all rows may have use for.
        memory = 16 << 20
        plan = plan_memory(place.settings, model, place.backend, memory, is_dedicated=True)
        assert 0.88 < plan.total_bytes / memory <= 0.9
        plans.append(plan)
    assert [plan.num_state_snapshots for plan in plans] == [16, 3, 0]
    assert plans[0].num_blocks < plans[1].num_blocks < plans[2].num_blocks


def test_what_no_kernel_takes_is_refused_by_name(falcon):
    folder, _ = falcon
    model = ModelConfig.load(folder, Dtype.FLOAT16)
    assert layer_unsupported_reason(model.spec) is None
    layer, *others = model.spec.layers
    for name, sizes in (
        ("states of such large heads", {"state_dim": 264}),
        ("states of such large heads", {"head_dim": 144}),
        ("convolutions of no multiple of 8 channels", {"state_dim": 129}),
    ):
        changed = replace(layer, recurrent=replace(layer.recurrent, **sizes))
        spec = replace(model.spec, layers=(changed, *others))
        assert layer_unsupported_reason(spec) == f"model: {name} are not supported on a GPU"
    for setting, message in (
        ({"swap_memory": 2**20}, "swap_memory: expected off for a model with a recurrent state"),
        ({"drafts": "lookup"}, "drafts: expected off for a model with a recurrent state"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_device(engine_config(device="cuda", **setting), model, EmulatedDevice())
