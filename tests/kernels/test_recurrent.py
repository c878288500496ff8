"""Layers with a recurrent state against their plain PyTorch twins."""

import pytest
import torch
import torch.nn.functional as F
from chairlift import _core
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import cpu
from chairlift.kernels.interface import DeltaRules, ScanRules

HEADS, KEY_HEADS, KEY, VALUE, TAPS = 4, 2, 24, 48, 4
CHANNELS = 2 * KEY_HEADS * KEY + HEADS * VALUE
EPS = 1e-6
LENGTHS = {2: 37, 0: 1, 3: 5}
"""Tokens of some of the rows."""

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def batch(counts, lengths):
    starts = torch.tensor([0, *counts.values()]).cumsum(0).int()
    none = torch.zeros(0).int()
    return AttentionMetadata(
        rows=torch.tensor(list(counts)).int(),
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths).int(),
        positions=none,
        slot_mapping=none,
        block_tables=none,
        block_size=16,
    )


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def conv_twin(x, weight, bias):
    """Convolve `x` `[T, C]` with `weight` `[K, C]`, and apply SiLU."""
    padded = F.pad(x.T.float(), (len(weight) - 1, 0))
    return F.silu(F.conv1d(padded, weight.T[:, None], bias, groups=x.shape[1])).T


def delta_twin(qkv, gate, beta_alpha, rules):
    """Compute the gated delta rule of one row, token by token."""
    query, key, value = qkv.float().split([KEY_HEADS * KEY, KEY_HEADS * KEY, HEADS * VALUE], 1)
    order = torch.arange(HEADS)
    order = order % KEY_HEADS if rules.interleaved_heads else order // (HEADS // KEY_HEADS)
    query, key = (part.view(-1, KEY_HEADS, KEY)[:, order] for part in (query, key))
    query, key = (
        part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (query, key)
    )
    value = value.view(-1, HEADS, VALUE)
    b, a = beta_alpha.float().split(HEADS, 1)
    decay = torch.exp(-rules.rate * F.softplus(a + rules.dt_bias))
    state, out = torch.zeros(HEADS, KEY, VALUE), []
    for token in range(len(qkv)):
        state = state * decay[token, :, None, None]
        recalled = torch.einsum("hkv,hk->hv", state, key[token])
        share = rules.max_beta * b[token].sigmoid()
        correction = (value[token] - recalled) * share[:, None]
        state = state + torch.einsum("hk,hv->hkv", key[token], correction)
        out.append(torch.einsum("hkv,hk->hv", state, query[token]) / KEY**0.5)
    mixed = F.rms_norm(torch.stack(out), (VALUE,), rules.norm_weight, rules.eps)
    return mixed.flatten(1) * F.silu(gate.float())


@every_dtype
def test_a_convolution_equals_its_twin(dtype):
    x = random(sum(LENGTHS.values()), CHANNELS).to(dtype)
    weight, bias = random(TAPS, CHANNELS, seed=1), random(CHANNELS, seed=2)
    state = torch.full((4, TAPS - 1, CHANNELS), torch.nan)
    out = torch.empty_like(x)
    rows = batch(LENGTHS, list(LENGTHS.values()))
    cpu.causal_conv(x, weight, state, rows, out, bias=bias, has_silu=True)
    parts = zip(x.split(list(LENGTHS.values())), out.split(list(LENGTHS.values())), strict=True)
    for part, got in parts:
        expected = conv_twin(part, weight, bias).to(dtype)
        torch.testing.assert_close(
            got, expected, atol=2e-6, rtol=8e-3 if dtype.itemsize == 2 else 2e-6
        )
    assert state[1].isnan().all(), "the state of a row that is not in the step stays"


@every_dtype
@pytest.mark.parametrize(("max_beta", "interleaved_heads"), [(1.0, False), (2.0, True)])
def test_the_delta_rule_equals_its_twin(dtype, max_beta, interleaved_heads):
    num_tokens = sum(LENGTHS.values())
    qkv, gate, beta_alpha = (
        random(num_tokens, width, seed=width).to(dtype)
        for width in (CHANNELS, HEADS * VALUE, 2 * HEADS)
    )
    numbers = 0.1 * random(HEADS).exp(), random(HEADS, seed=1), random(VALUE, seed=2)
    rules = DeltaRules(*numbers, EPS, max_beta, interleaved_heads)
    state = torch.full((4, HEADS, KEY, VALUE), torch.nan)
    out = torch.empty_like(gate)
    rows = batch(LENGTHS, list(LENGTHS.values()))
    cpu.gated_delta(qkv, gate, beta_alpha, rules, state, rows, out)
    inputs = (part.split(list(LENGTHS.values())) for part in (qkv, gate, beta_alpha, out))
    for *part, got in zip(*inputs, strict=True):
        expected = delta_twin(*part, rules).to(dtype)
        torch.testing.assert_close(
            got, expected, atol=1e-5, rtol=8e-3 if dtype.itemsize == 2 else 1e-5
        )
    assert state[1].isnan().all(), "the state of a row that is not in the step stays"


def scan_twin(xbc, dt, rules, num_groups, state_dim):
    """Compute the selective scan of one row, token by token."""
    sizes = [HEADS * VALUE, num_groups * state_dim, num_groups * state_dim]
    x, b, c = xbc.float().split(sizes, 1)
    x = x.view(-1, HEADS, VALUE)
    b, c = (
        part.view(-1, num_groups, state_dim).repeat_interleave(HEADS // num_groups, 1)
        for part in (b, c)
    )
    step = F.softplus(dt.float() + rules.dt_bias)
    decay = torch.exp(-rules.rate * step)
    state, out = torch.zeros(HEADS, state_dim, VALUE), []
    for token in range(len(xbc)):
        added = torch.einsum("hn,hp->hnp", step[token, :, None] * b[token], x[token])
        state = state * decay[token, :, None, None] + added
        own = rules.skip[:, None] * x[token]
        out.append(torch.einsum("hnp,hn->hp", state, c[token]) + own)
    return torch.stack(out).flatten(1)


@every_dtype
def test_a_selective_scan_equals_its_twin(dtype):
    num_tokens, num_groups, state_dim = sum(LENGTHS.values()), 2, 20
    width = HEADS * VALUE + 2 * num_groups * state_dim
    xbc, dt = (random(num_tokens, n, seed=n).to(dtype) for n in (width, HEADS))
    rules = ScanRules(0.1 * random(HEADS).exp(), random(HEADS, seed=1), random(HEADS, seed=2))
    state = torch.full((4, HEADS, state_dim, VALUE), torch.nan)
    out = torch.empty(num_tokens, HEADS * VALUE, dtype=dtype)
    rows = batch(LENGTHS, list(LENGTHS.values()))
    cpu.selective_scan(xbc, dt, rules, num_groups, state, rows, out)
    for *part, got in zip(*(p.split(list(LENGTHS.values())) for p in (xbc, dt, out)), strict=True):
        expected = scan_twin(*part, rules, num_groups, state_dim).to(dtype)
        torch.testing.assert_close(
            got, expected, atol=1e-5, rtol=8e-3 if dtype.itemsize == 2 else 1e-5
        )
    assert state[1].isnan().all(), "the state of a row that is not in the step stays"


@every_dtype
@pytest.mark.parametrize("has_norm", [True, False])
def test_a_gated_norm_is_of_each_group(dtype, has_norm):
    x, gate, weight = random(3, 40).to(dtype), random(3, 60, seed=1).to(dtype)[:, :40], random(40)
    gated = (x.float() * F.silu(gate.float())).view(3, 2, 20)
    if has_norm:
        gated = F.rms_norm(gated, (20,), eps=EPS).flatten(1) * weight
    cpu.gated_rms_norm(x, gate, weight if has_norm else None, 20, EPS)
    expected = gated.view(3, 40).to(dtype)
    torch.testing.assert_close(x, expected, atol=1e-5, rtol=8e-3 if dtype.itemsize == 2 else 1e-5)
    with pytest.raises(ValueError, match="group_size: expected a divisor of 40, got 15"):
        cpu.gated_rms_norm(x, gate, weight, 15, EPS)


@every_dtype
def test_a_part_of_each_row_is_scaled(dtype):
    whole = random(3, 60).to(dtype)
    expected = whole.clone()
    expected[:, 10:30] = (expected[:, 10:30].float() * 0.7).to(dtype)
    cpu.scale(whole[:, 10:30], 0.7)
    assert torch.equal(whole, expected)


@every_dtype
def test_a_gate_is_a_sigmoid(dtype):
    x, gate = random(3, 40).to(dtype), random(3, 60, seed=1).to(dtype)[:, :40]
    expected = (x.float() * gate.float().sigmoid()).to(dtype)
    cpu.gate_by_sigmoid(x, gate)
    torch.testing.assert_close(x, expected, atol=1e-6, rtol=8e-3 if dtype.itemsize == 2 else 1e-6)


@every_dtype
def test_a_gate_of_one_column_is_of_the_whole_row(dtype):
    x, logits = random(5, 40).to(dtype), random(5, 7, seed=1)
    expected = (x.float() * logits[:, 6:].sigmoid()).to(dtype)
    cpu.gate_by_sigmoid(x, logits[:, 6:])
    torch.testing.assert_close(x, expected, atol=1e-6, rtol=8e-3 if dtype.itemsize == 2 else 1e-6)


def test_states_are_copied_from_row_to_row():
    state = torch.randn(5, 3, 17)
    before = state.clone()
    moves = torch.tensor([[4, 0], [1, 0], [3, 2]], dtype=torch.int32)
    cpu.copy_states(state, moves)
    assert torch.equal(state, before[[0, 0, 2, 2, 0]])
    with pytest.raises(ValueError, match=r"moves: expected sources in 0\.\.5 that are no targets"):
        cpu.copy_states(state, torch.tensor([[1, 0], [2, 1]], dtype=torch.int32))


def test_wrong_arguments_are_refused_by_name():
    x, weight = random(2, CHANNELS), random(TAPS, CHANNELS)
    state, out = torch.zeros(4, TAPS - 1, CHANNELS), torch.empty(2, CHANNELS)
    for rows, message in (
        (batch({4: 2}, [2]), "rows: expected rows in 0..4, each once, got 4"),
        (batch({0: 1, 1: 2}, [1, 2]), "starts: expected 0 to 2, in order, got 3"),
        (batch({0: 2}, [1]), "lens: expected at least 2, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            cpu.causal_conv(x, weight, state, rows, out)
    with pytest.raises(ValueError, match="state: expected"):
        cpu.causal_conv(x, weight, state[:, 1:], batch({0: 2}, [2]), out)
    one = torch.ones(HEADS)
    with pytest.raises(ValueError, match="value_dim: expected a multiple of 16, got 40"):
        _core.gated_delta(
            *(random(2, 2 * KEY + HEADS * 40), random(2, HEADS * 40), random(2, 2 * HEADS)),
            *(one, one, torch.ones(40), EPS, 1.0, False, torch.zeros(4, HEADS, KEY, 40)),
            *(torch.tensor([0]).int(), torch.tensor([0, 2]).int(), torch.tensor([2]).int()),
            torch.empty(2, HEADS * 40),
        )
