"""The kernels of recurrent states against those of the CPU, which have twins of their own."""

import os

import pytest
import torch
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import cpu
from chairlift.kernels.cuda import ops
from chairlift.kernels.cuda.launch import install
from chairlift.kernels.cuda.recurrent_ops import holds_state
from chairlift.kernels.interface import DeltaRules, ScanRules

from tests.cuda.conftest import launch_emulated
from tests.cuda.emulation import guarded, reversed_turns
from tests.cuda.emulation.library import compiler
from tests.cuda.instantiations import BF16, F16, instance

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

ROUNDING = {BF16: 2**-7, F16: 2**-10}
NUM_STATES, PAD = 6, 3
COUNTS = {4: 37, 0: 1, 3: 0, 2: 5, 5: 1}
"""Tokens of rows; one has none, and row 1 is not in the step."""
BEFORE = {0: 9, 2: 20, 5: 0, 4: 0, 3: 7}
"""Tokens of the rows before the step."""
NUM_TOKENS = sum(COUNTS.values())


class Forwarding:
    """Launches on tensors of the CPU by the emulation."""

    def launch(self, name, grid, num_threads, shared_bytes, *arguments):
        values = [a if a is None or isinstance(a, torch.Tensor) else a.value for a in arguments]
        launch_emulated(name, grid, num_threads, shared_bytes, values)


@pytest.fixture(autouse=True)
def _emulated():
    if compiler() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs g++")
    install(torch.device("cpu"), Forwarding())


def batch(counts, before):
    none = torch.zeros(0).int()
    return AttentionMetadata(
        rows=guarded(torch.tensor(list(counts)).int()),
        query_start_loc=guarded(torch.tensor([0, *counts.values()]).cumsum(0).int()),
        seq_lens=guarded(torch.tensor([before[row] + n for row, n in counts.items()]).int()),
        positions=none,
        slot_mapping=none,
        block_tables=none,
        block_size=16,
    )


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def strided(width, dtype, seed, num_tokens=NUM_TOKENS):
    """Rows in wider ones, which nothing else may read; the last are padding."""
    whole = torch.full((num_tokens + PAD, -(-width // 8) * 8 + 16), torch.nan, dtype=dtype)
    whole[:num_tokens, 8 : 8 + width] = random(num_tokens, width, seed=seed).to(dtype)
    return guarded(whole)[:, 8 : 8 + width]


def states(*shape):
    """Strided states: random of rows that go on, else NaN."""
    size = torch.Size(shape).numel()
    pool = torch.full((NUM_STATES, size + 12), torch.nan)
    for row, count in BEFORE.items():
        if count:
            pool[row, 4 : 4 + size] = random(size, seed=row)
    return guarded(pool)[:, 4 : 4 + size].unflatten(1, shape)


class Case:
    """An operation on a state: `inputs` are `[T, ...]` each, `call` is made of any of its kernels.

    Args:
        dtype: Of inputs and outputs.
        widths: Of the inputs.
        width: Of the output.
        shape: Of the state of a row.
        call: Takes kernels, inputs, state, batch and output.
    """

    def __init__(self, dtype, widths, width, shape, call):
        self.dtype, self.width, self.shape, self.call = dtype, width, shape, call
        self.inputs = [strided(width, dtype, seed) for seed, width in enumerate(widths)]

    def out(self, num_tokens):
        return guarded(torch.full((num_tokens, self.width), torch.nan, dtype=self.dtype))

    def run(self):
        """Return output and states of the whole step."""
        out, state = self.out(len(self.inputs[0])), states(*self.shape)
        self.call(ops, self.inputs, state, batch(COUNTS, BEFORE), out)
        return out, state

    def expected(self):
        """The same of the CPU, in float32."""
        counts = {row: n for row, n in COUNTS.items() if n}
        num_tokens, state = sum(counts.values()), states(*self.shape).contiguous()
        out = torch.empty(num_tokens, self.width)
        inputs = [part[:num_tokens].float() for part in self.inputs]
        self.call(cpu, inputs, state, batch(counts, BEFORE), out)
        return out, state

    def cut(self, lengths):
        """The same, row after row and in chunks of such lengths."""
        out, state, first = self.out(len(self.inputs[0])), states(*self.shape), 0
        for row, count in COUNTS.items():
            done = 0
            for length in [*lengths, count]:
                some = min(length, count - done)
                if some == 0:
                    continue
                part = slice(first + done, first + done + some)
                one = batch({row: some}, {row: BEFORE[row] + done})
                own = self.out(some)
                self.call(ops, [x[part] for x in self.inputs], state, one, own)
                out[part], done = own, done + some
            first += count
        return out, state


def conv(dtype, channels, taps, *, bias=False, gates=False, has_silu=False):
    weight = guarded(random(taps, channels, seed=7))
    own_bias = guarded(random(channels, seed=8)) if bias else None

    def call(kernels, inputs, state, rows, out):
        x, *factors = inputs
        options = {"bias": own_bias, "gates": tuple(factors) or None, "has_silu": has_silu}
        kernels.causal_conv(x, weight, state, rows, out, **options)

    widths = [channels] * (3 if gates else 1)
    return Case(dtype, widths, channels, (taps - 1, channels), call)


def delta(dtype, key_dim, value_dim, *, num_key_heads=2, max_beta=1.0, interleaved_heads=False):
    numbers = [0.1 * random(4).exp(), random(4, seed=1), random(value_dim, seed=2)]
    rules = DeltaRules(*map(guarded, numbers), 1e-6, max_beta, interleaved_heads)

    def call(kernels, inputs, state, rows, out):
        kernels.gated_delta(*inputs, rules, state, rows, out)

    widths = [2 * num_key_heads * key_dim + 4 * value_dim, 4 * value_dim, 8]
    return Case(dtype, widths, 4 * value_dim, (4, key_dim, value_dim), call)


def scan(dtype, state_dim, head_dim, num_groups):
    rules = ScanRules(0.1 * random(4).exp(), random(4, seed=1), random(4, seed=2))
    rules = ScanRules(*map(guarded, rules))

    def call(kernels, inputs, state, rows, out):
        kernels.selective_scan(*inputs, rules, num_groups, state, rows, out)

    widths = [4 * head_dim + 2 * num_groups * state_dim, 4]
    return Case(dtype, widths, 4 * head_dim, (4, state_dim, head_dim), call)


CASES = {
    "short convolution": lambda: conv(BF16, 24, 3, gates=True),
    "short convolution of two tokens": lambda: conv(F16, 8, 2, bias=True, gates=True),
    "convolution": lambda: conv(F16, 1040, 4, has_silu=True),
    "convolution of eight tokens": lambda: conv(BF16, 16, 8, bias=True, has_silu=True),
    "delta": lambda: delta(BF16, 24, 48),
    "delta, heads in turn": lambda: delta(F16, 20, 16, interleaved_heads=True, max_beta=2.0),
    "delta of long keys": lambda: delta(F16, 136, 16, num_key_heads=1),
    "scan": lambda: scan(BF16, 20, 48, 2),
    "scan of a large state": lambda: scan(F16, 136, 16, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_states_are_those_of_the_cpu(name):
    case = CASES[name]()
    out, state = case.run()
    expected, expected_state = case.expected()
    num_tokens = len(expected)
    rounding = ROUNDING[case.dtype]
    scale = expected.abs().max()
    torch.testing.assert_close(
        out[:num_tokens].float(), expected, rtol=rounding, atol=rounding * scale / 8
    )
    assert out[num_tokens:].isnan().all(), "padding stays"
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert state[1].isnan().all(), "the state of a row that is not in the step stays"
    assert torch.equal(state[3], states(*case.shape)[3]), "so does that of a row without tokens"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("lengths", [(), (1, 2, 1, 7), (9, 16)])
def test_bits_depend_neither_on_the_batch_nor_on_where_a_prompt_is_cut(name, lengths):
    case = CASES[name]()
    out, state = case.run()
    other, other_state = case.cut(lengths)
    assert torch.equal(out[:NUM_TOKENS], other[:NUM_TOKENS])
    assert torch.equal(state.nan_to_num(7.0), other_state.nan_to_num(7.0))


@pytest.mark.parametrize("name", ["convolution", "delta", "scan"])
def test_no_result_depends_on_which_block_or_thread_goes_first(name):
    case = CASES[name]()
    expected, expected_state = case.run()
    kernel = {
        "convolution": instance("causal_conv", F16),
        "delta": instance("gated_delta", BF16, 128),
        "scan": instance("selective_scan", BF16, 128),
    }[name]
    with reversed_turns(kernel):
        out, state = case.run()
    assert torch.equal(out.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(state.nan_to_num(7.0), expected_state.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("group_size", "num_groups"), [(16, 3), (2056, 1)])
@pytest.mark.parametrize("has_norm", [True, False])
def test_a_gated_norm_is_of_each_group(dtype, group_size, num_groups, has_norm):
    width = group_size * num_groups
    x, gate = (strided(width, dtype, seed, num_tokens=2)[:2] for seed in range(2))
    weight = guarded(random(width)) if has_norm else None
    expected = x.float().contiguous()
    cpu.gated_rms_norm(expected, gate.float(), weight, group_size, 1e-5)
    ops.gated_rms_norm(x, gate, weight, group_size, 1e-5)
    torch.testing.assert_close(x.float(), expected, rtol=ROUNDING[dtype], atol=1e-6)


@pytest.mark.parametrize("size", [4, 4 * 256 * 16 + 8])
def test_states_are_copied_whole(size):
    whole = random(5, size)
    pool = guarded(whole)
    ops.copy_states(pool, guarded(torch.tensor([[3, 1], [0, 1], [4, 2]]).int()))
    assert torch.equal(pool, whole[[1, 1, 2, 1, 2]])


def test_registers_hold_states_of_published_models():
    # Qwen 3.5, OLMo-Hybrid, Granite 4, Nemotron Nano, Falcon-H1 34B.
    for size in ((128, 128), (96, 192), (128, 64), (128, 80), (256, 128)):
        assert holds_state(*size)
    for size in ((257, 16), (256, 144), (128, 208)):
        assert not holds_state(*size)


def test_a_nan_stays_in_its_row():
    for name in CASES:
        case = CASES[name]()
        expected, expected_state = case.run()
        case.inputs[0][1] = torch.nan
        out, state = case.run()
        assert out[1].isnan().all()
        assert torch.equal(out[37:43], expected[37:43])
        others = [0, 2, 3, 5]
        assert torch.equal(state[others], expected_state[others])
