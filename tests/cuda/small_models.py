"""Small models of random weights, engines that run them on an emulated GPU, and `transformers`.

Kernels of a GPU round otherwise than `transformers` in float32 does: a token passes if the
reference finds hardly any other likelier.
"""

import torch
from chairlift.api.types import Output, Tokens
from chairlift.kernels.cuda.linear import Linear
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.cuda.emulated_device import EmulatedEngine
from tests.cuda.gpu_device import ON_GPU, GpuEngine
from tests.engine.drive import assert_empty, greedy, run, token_ids
from tests.engine.tiny_model import write_tokenizer
from tests.model import gemma_table
from tests.model.families import perturbed

VOCAB_SIZE = 390
NUM_TOKENS = 6
GAPS = {"bfloat16": 0.05, "float16": 0.01, "float8": 0.2, "float8, six layers": 0.4}
"""How far a token may be from the reference's choice, in standard deviations of the logits.

A key between two numbers of float8 may be rounded to either.
"""

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 0,
    "attn_implementation": "eager",
}
KINDS = ["sliding_attention", "full_attention"]
GEMMA4 = {
    **SIZES,
    "global_head_dim": 64,
    "num_global_key_value_heads": 2,
    "sliding_window": 20,
    "layer_types": KINDS,
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "rope_parameters": gemma_table.GEMMA4["rope_parameters"],
}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    # Two KV groups: its layers have work lists and tiles of their own.
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config(
            **SIZES,
            use_sliding_window=True,
            sliding_window=40,
            layer_types=KINDS,
        ),
    ),
    # Heads of two sizes in one pool, and layers that see the keys of an earlier one.
    "gemma 4": (
        Gemma4ForCausalLM,
        Gemma4TextConfig(
            **{
                **GEMMA4,
                "num_hidden_layers": 6,
                "layer_types": [KINDS[0], *KINDS, *KINDS, KINDS[1]],
                "num_kv_shared_layers": 3,
                "global_head_dim": 512,
            },
            hidden_size_per_layer_input=24,
        ),
    ),
}


def write(folder, architecture):
    torch.manual_seed(0)
    model_class, config = architecture
    model = model_class(config).eval()
    with torch.no_grad():
        for _, parameter in perturbed(model):
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder, VOCAB_SIZE - 10)
    # The same weights, but nothing else is rounded.
    reference = model_class.from_pretrained(folder, dtype="float32", attn_implementation="eager")
    reference.windows = set(getattr(config, "layer_types", ["full_attention"]))
    return reference


def make(folder, **settings):
    defaults = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 400}
    engine = GpuEngine if ON_GPU else EmulatedEngine
    return engine(folder, **{**defaults, "kv_cache_memory": 1 << 24, **settings})


def prompts(*lengths):
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(1, VOCAB_SIZE, (n,), generator=draw).tolist() for n in lengths]


def requests(asked, **stopping):
    return [greedy(p, NUM_TOKENS, ignore_eos=True, **stopping) for p in asked]


def assert_likely(reference, prompt, answer, dtype="bfloat16"):
    """No token of an answer is much less likely than the one that the reference takes."""
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    gaps = (logits.amax(1) - chosen) / logits.std(1)
    assert gaps.max() < GAPS[dtype], f"gaps {gaps.tolist()}"


def logprobs(events):
    """The log probabilities of the tokens of an answer."""
    return [p for e in events if isinstance(e, Tokens) for p in e.logprobs.logprobs]


def assert_answers_are_those_of(reference, engine, most):
    """Prompts have likely answers, whose log probabilities are those of the reference.

    Prompts in chunks, decodes and both in one step; more requests than rows; padded batches.

    Args:
        reference: The model by `transformers`.
        engine: In float16.
        most: How far a log probability may be off, in standard deviations of the logits.
    """
    asked = prompts(1, 17, 90, 40, 5)
    answers = run(engine, requests(asked, output=Output(logprobs=True)))
    for prompt, events in zip(asked, answers, strict=True):
        answer = token_ids(events)
        assert_likely(reference, prompt, answer, "float16")
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        error = (torch.tensor(logprobs(events)) - expected).abs().max() / logits.std()
        assert error < most, f"of the standard deviation: {error}"
    assert_empty(engine)


def assert_alone_is_as_crowded(folder, monkeypatch):
    """Answers have the same bits alone and beside others, where linear layers give these.

    A chunk of a few tokens is computed as decodes are, with other sums: prompts are whole here.
    """
    of_batch = Linear.__call__

    def of_rows(layer, x, out_dtype=None, out=None):
        dtype = out_dtype or (x.dtype if out is None else out.dtype)
        return torch.cat([of_batch(layer, row, dtype) for row in x.split(1)], out=out)

    monkeypatch.setattr(Linear, "__call__", of_rows)
    whole = {"device": "cuda", "prefix_cache": False, "max_num_batched_tokens": 256}
    wanted = requests(prompts(70, 17, 90, 5), output=Output(logprobs=True))
    alone, crowded = make(folder, **whole), run(make(folder, **whole), wanted)
    for request, events in zip(wanted, crowded, strict=True):
        (expected,) = run(alone, [request])
        assert token_ids(events) == token_ids(expected)
        assert logprobs(events) == logprobs(expected)
