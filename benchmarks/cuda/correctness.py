"""Each kernel against a few lines of PyTorch on the same GPU, or the CPU's, before measuring."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from chairlift import _core
from chairlift.api.sampler_options import SamplerOptions, SamplingParameters
from chairlift.attention.metadata import AttentionMetadata
from chairlift.engine.runner.device_draws import ListBuffers
from chairlift.engine.runner.sampler import Sampler
from chairlift.kernels import Kernels, cpu
from chairlift.kernels.cuda import draw_ops, ops
from chairlift.kernels.cuda.device import Accelerator
from chairlift.kernels.interface import DeltaRules, RaggedBatch, ScanRules
from chairlift.model.specs.layer_parts import Experts
from torch import Tensor

from benchmarks.cuda.attention import Batch, PagedAttention
from benchmarks.cuda.mixtures import Mixture

Check = Callable[[Accelerator], tuple[Tensor, Tensor]]
"""The result of a kernel, and the expected one."""

TOLERANCE = 2e-2
"""Of bfloat16, relative to the largest number."""


def mistakes(accelerator: Accelerator) -> Iterator[tuple[str, float]]:
    """Return the name and the relative error of each check; the kernels of the case are loaded."""
    rows = rms_norm, layer_norm, silu_mul, gelu, kv_write, neighbours
    states = convolution, delta, scan, states_copied
    for check in (*rows, decode, prefill, mixed, sinks, experts, *states, head, sample, options):
        got, expected = (t.double() for t in check(accelerator))
        error = (got - expected).abs().max() / expected.abs().max().clamp_min(1e-9)
        yield check.__name__, float(error.nan_to_num(torch.inf))


def _random(accelerator: Accelerator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=accelerator.device)


def rms_norm(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """With a residual that is added first."""
    x, update = (_random(accelerator, 7, 1024) for _ in range(2))
    weight = _random(accelerator, 1024)
    total = x.double() + update.double()
    scale = (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return ops.add_rms_norm(x, update, weight, 1e-6), total * scale * weight.double()


def layer_norm(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """With a bias."""
    x, (weight, bias) = _random(accelerator, 7, 1024), _random(accelerator, 2, 1024)
    expected = torch.nn.functional.layer_norm(
        x.double(), (1024,), weight.double(), bias.double(), 1e-6
    )
    return ops.layer_norm(x, weight, bias, 1e-6), expected


def silu_mul(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """Both halves side by side."""
    gate_up = _random(accelerator, 7, 6144)
    gate, up = gate_up.double().chunk(2, dim=-1)
    return ops.silu_mul(gate_up), torch.nn.functional.silu(gate) * up


def gelu(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """By tanh, without a gate."""
    x = _random(accelerator, 7, 3072)
    return ops.activate(x, "gelu_tanh"), torch.nn.functional.gelu(x.double(), approximate="tanh")


def kv_write(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """Norms, RoPE and the write to the cache."""
    return _written(accelerator, 128, is_interleaved=False)


def neighbours(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """The same with RoPE of neighbours, of half of a head."""
    return _written(accelerator, 64, is_interleaved=True)


def _written(
    accelerator: Accelerator, rotary_dim: int, *, is_interleaved: bool
) -> tuple[Tensor, Tensor]:
    heads, kv_heads, dim, tokens = 16, 8, 128, 5
    qkv = _random(accelerator, tokens, heads + 2 * kv_heads, dim)
    parts = qkv.double()
    cache = torch.zeros(2, 4, kv_heads, 16, dim, dtype=torch.bfloat16, device=qkv.device)
    norm = _random(accelerator, dim)
    positions = torch.arange(3, 3 + tokens, dtype=torch.int32, device=qkv.device)
    angles = torch.rand(64, rotary_dim // 2, device=qkv.device)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    query_key, value = torch.split(qkv, [heads + kv_heads, kv_heads], dim=1)
    rotation = cos_sin, cos_sin, norm, norm, 1e-6, 0.0, is_interleaved
    ops.kv_write(query_key, value, cache, positions + 30, positions, *rotation)
    normed = parts[:, : heads + kv_heads]
    normed = normed * (normed.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * norm.double()
    cos, sin = cos_sin[positions.long()].double()[:, None].chunk(2, dim=-1)
    # Where the numbers of each pair are.
    places = torch.arange(rotary_dim, device=qkv.device)
    first, second = (places[::2], places[1::2]) if is_interleaved else places.chunk(2)
    a, b = normed[..., first], normed[..., second]
    normed[..., first], normed[..., second] = a * cos - b * sin, b * cos + a * sin
    slots = (positions + 30).long()
    written = cache[:, slots // 16, :, slots % 16].transpose(0, 1)
    got = torch.cat((qkv[:, :heads], *written), 1)
    return got, torch.cat((normed, parts[:, heads + kv_heads :]), 1)


def decode(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """One query a row, over up to 17 splits."""
    return _attention(accelerator, Batch("decode", (1, 700, 4097, 256), (1, 1, 1, 1)))


def prefill(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """Whole prompts and a later chunk."""
    return _attention(accelerator, Batch("prefill", (500, 77), (500, 33)))


def mixed(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """Rows for either kernel in one step."""
    return _attention(accelerator, Batch("mixed", (90, 600, 30), (1, 65, 3)))


def sinks(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """The same with a sink for each head."""
    batch = Batch("sinks", (90, 600, 30), (1, 65, 3))
    numbers = torch.linspace(-2, 4, batch.num_heads, device=accelerator.device)
    return _attention(accelerator, batch, numbers)


def _attention(
    accelerator: Accelerator, batch: Batch, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    attention = PagedAttention(batch, accelerator)
    attention.sinks = sinks
    got, expected = attention.attend(), []
    for row, length in enumerate(batch.seq_lens):
        query, key, value = (part.double() for part in attention.gathered(row))
        queries = query.shape[2]
        mask = torch.ones(queries, length, dtype=torch.bool, device=query.device)
        seen = mask.tril(length - queries)
        group = batch.num_heads // batch.num_kv_heads
        key, value = (part.repeat_interleave(group, 1) for part in (key, value))
        scores = query @ key.transpose(2, 3) * batch.head_dim**-0.5
        scores = scores.masked_fill(~seen, -torch.inf)
        if sinks is not None:
            sink = sinks.double().view(1, -1, 1, 1).expand(1, -1, queries, 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., :length]
        expected.append((weights @ value)[0].transpose(0, 1))
    return got, torch.cat(expected)


def experts(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """Tiles of either size."""
    rules = Experts(6, 2, 200, "softmax", min_weight_sum=0.0)
    mixture = Mixture(rules, 264, accelerator.device)
    x = _random(accelerator, 150, 264)
    logits = torch.randn(150, rules.num, device=x.device)  # no two alike
    few = mixture(x[:9], logits[:9])
    return torch.cat((few, mixture(x, logits))), mixture.expected(
        torch.cat((x[:9], x)), torch.cat((logits[:9], logits))
    )


def convolution(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """A new row, and one that goes on where its state ends."""
    device, channels, taps = accelerator.device, 1032, 4
    weight = torch.randn(taps, channels, device=device)

    def call(kernels: Kernels, x: Tensor, state: Tensor, rows: RaggedBatch, out: Tensor) -> None:
        own = weight.to(x.device)
        kernels.causal_conv(x, own, state, rows, out, has_silu=True)

    return _advanced(accelerator, [channels], channels, (taps - 1, channels), call)


def delta(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """The gated delta rule; two value heads share a key head."""
    heads, keys, values = 4, 128, 128
    numbers = [torch.rand(heads), torch.randn(heads), torch.randn(values)]

    def call(kernels: Kernels, *arguments: Any) -> None:  # noqa: ANN401, tensors and a batch
        qkv, gate, beta_alpha, state, rows, out = arguments
        rate, bias, norm = (own.to(qkv.device) for own in numbers)
        rules = DeltaRules(rate, bias, norm, 1e-6)
        kernels.gated_delta(qkv, gate, beta_alpha, rules, state, rows, out)

    size = heads * values
    widths = [2 * 2 * keys + size, size, 2 * heads]
    return _advanced(accelerator, widths, size, (heads, keys, values), call)


def scan(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """The selective scan of Mamba-2, in two groups."""
    heads, state_dim, head_dim, groups = 4, 128, 64, 2
    numbers = [torch.rand(heads), torch.randn(heads), torch.randn(heads)]

    def call(kernels: Kernels, *arguments: Any) -> None:  # noqa: ANN401, tensors and a batch
        xbc, dt, state, rows, out = arguments
        rules = ScanRules(*(own.to(xbc.device) for own in numbers))
        kernels.selective_scan(xbc, dt, rules, groups, state, rows, out)

    size = heads * head_dim
    widths = [size + 2 * groups * state_dim, heads]
    return _advanced(accelerator, widths, size, (heads, state_dim, head_dim), call)


def _advanced(
    accelerator: Accelerator,
    widths: list[int],
    width: int,
    shape: tuple[int, ...],
    call: Callable[..., None],
) -> tuple[Tensor, Tensor]:
    """Return what a kernel makes of random inputs, output and states, and what the CPU does."""
    device, counts, befores = accelerator.device, [40, 1, 9], [0, 7, 3]
    inputs = [_random(accelerator, sum(counts), own) for own in widths]
    state = torch.randn(4, *shape, device=device)
    batch = AttentionMetadata(
        rows=torch.tensor([2, 0, 3]).int(),
        query_start_loc=torch.tensor([0, *counts]).cumsum(0).int(),
        seq_lens=torch.tensor([sum(pair) for pair in zip(counts, befores, strict=True)]).int(),
        positions=torch.empty(0),
        slot_mapping=torch.empty(0),
        block_tables=torch.empty(0),
        block_size=16,
    )
    expected, expected_state = torch.empty(sum(counts), width), state.cpu().clone()
    call(cpu, *(own.cpu().float() for own in inputs), expected_state, batch, expected)
    names = "rows", "query_start_loc", "seq_lens"
    there = replace(batch, **{name: getattr(batch, name).to(device) for name in names})
    out = _random(accelerator, sum(counts), width)
    call(ops, *inputs, state, there, out)
    pairs = (expected, out), (expected_state, state)
    scales = [own.abs().max() for own, _ in pairs]
    got, wanted = (
        torch.cat([(pair[i].cpu() / s).flatten() for pair, s in zip(pairs, scales, strict=True)])
        for i in (1, 0)
    )
    return got, wanted


def states_copied(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """States of whole rows, of some 100 KiB."""
    pool = torch.randn(5, 25_000, device=accelerator.device)
    expected = pool[[1, 1, 2, 1, 4]].clone()
    ops.copy_states(pool, torch.tensor([[0, 1], [3, 1]], device=pool.device).int())
    return pool, expected


def head(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """Logits in float32 of inputs and weights in 16 bits."""
    x, weight = _random(accelerator, 5, 256), _random(accelerator, 1000, 256)
    return ops.linear(weight)(x, torch.float32), x.double() @ weight.double().t()


def sample(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """The same tokens as the CPU draws."""
    rows, vocab_size = 64, 32_000
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab_size, generator=generator) * 4
    each = torch.arange(rows)
    parameters = (
        (each % 3 * 0.7).float(),
        (each % 5 * 20).int(),
        (1 - each % 4 * 0.1).float(),
        (each % 2 * 0.05).float(),
        each.long() * 7919,
        (each % 3).int(),
        (each * 5).int(),
    )
    results = [torch.empty(rows, dtype=torch.int32) for _ in range(3)]
    results[1] = results[1].float()
    on_device = [result.to(accelerator.device) for result in results]
    _core.sample(logits, *parameters, *results)
    draw_ops.sample(
        logits.to(accelerator.device),
        *on_device,
        *(parameter.to(accelerator.device) for parameter in parameters),
    )
    return on_device[0].cpu() == results[0], torch.ones(rows)


def options(accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """The same tokens as the CPU draws where rows ask for more."""
    rows, vocab_size = 12, 8_000
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab_size, generator=generator) * 4
    asked = [
        SamplerOptions(allowed_token_ids=tuple(range(0, vocab_size, 3)), num_candidates=20),
        SamplerOptions(repetition_penalty=1.4, presence_penalty=0.5, logit_bias=((7, 9.0),)),
        SamplerOptions(top_n_sigma=2.0, typical_p=0.8),
        SamplerOptions(xtc_probability=0.5, xtc_threshold=0.05),
    ]
    on_cpu, on_device = Sampler(rows), Sampler(rows)
    for sampler in (on_cpu, on_device):
        for row in range(rows):
            drawn = SamplingParameters(0.8, 50, 0.95, 0.01, row, asked[row % len(asked)])
            sampler.set(row, drawn, list(range(0, 1000, 2)))
    slots = torch.arange(rows, dtype=torch.int32)
    index, position, last = (torch.full((rows,), n, dtype=torch.int32) for n in (0, 500, 998))
    expected = on_cpu.sample(logits, slots, index, position, last)
    draws = on_device.sequences(slots, position)
    assert draws is not None
    sent = ListBuffers(accelerator, 1).upload(0, draws.lists(last, vocab_size), rows)
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64)
    parameters = [torch.zeros(rows, dtype=kind) for kind in kinds]
    on_device.gather(slots, *parameters)
    out = [torch.empty_like(x) for x in (expected.tokens, expected.logprobs, expected.ranks)]
    out = [x.to(accelerator.device) for x in out]
    ids, logprobs = sent.candidates
    draw_ops.sample_options(
        *(logits.to(accelerator.device), *out, ids, logprobs.view(torch.float32)),
        *(x.to(accelerator.device) for x in (*parameters, index, position)),
        *(sent.rows, sent.entries, sent.saved, sent.masks),
    )
    return out[0].cpu() == expected.tokens, torch.ones(rows)
