"""Tensors of shapes that no model has: empty ones, and ones that do not fit each other.

A kernel computes or refuses them with an exception that Python code can expect. A panic of the Rust
code (`PanicException`) is none: it is a `BaseException` that ends the engine's thread.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from chairlift import _core

NUM_CALLS = 300
"""Calls of each kernel."""

SIZES = (0, 1, 2, 3, 16, 32, 48)
HUGE = (-1, 2**31 - 1, 2**62)


class Draw:
    """Draws arguments: dimensions of one name are alike, but for one in a few calls."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sizes: dict[str, int] = {}
        self.oddness = self.rng.choice((0.0, 0.1, 0.5))
        self.dtype = self.rng.choice((*[torch.float32] * 3, torch.bfloat16))

    def size(self, name: str) -> int:
        """Return the size of a dimension: a name, a number or a product of them."""
        if self.rng.random() < self.oddness:
            return self.rng.choice(SIZES)
        size = 1
        for part in name.split("*"):
            if not part.isdigit():
                self.sizes.setdefault(part, self.rng.choice(SIZES))
            size *= int(part) if part.isdigit() else self.sizes[part]
        return size

    def shape(self, names: str) -> list[int]:
        return [self.size(name) for name in names.split()]

    def floats(self, names: str) -> torch.Tensor:
        """Return a float32 tensor, or a bfloat16 one in one call of four."""
        return torch.ones(self.shape(names), dtype=self.dtype)

    def float32(self, names: str) -> torch.Tensor:
        return torch.ones(self.shape(names))

    def bytes(self, names: str) -> torch.Tensor:
        return torch.zeros(self.shape(names), dtype=torch.uint8)

    def ints(self, names: str, low: int = 0) -> torch.Tensor:
        high = self.rng.choice((1, 2, 4, 2**31))
        shape = self.shape(names)
        flat = [self.rng.randrange(low, high) for _ in range(torch.Size(shape).numel())]
        return torch.tensor(flat, dtype=torch.int32).reshape(shape)

    def starts(self, name: str, total: str) -> torch.Tensor:
        """Return where so many sequences begin and end: from 0 to the total."""
        length = self.size(name) + 1
        last = self.size(total)
        inner = sorted(self.rng.randrange(last + 1) for _ in range(max(length - 2, 0)))
        return torch.tensor([0, *inner, last][:length], dtype=torch.int32)

    def number(self) -> int:
        return self.rng.choice(SIZES + (HUGE if self.oddness else ()))

    def or_odd(self, good: object) -> Any:
        """Return a good value, or in an odd call perhaps another number."""
        return self.number() if self.rng.random() < self.oddness else good

    def maybe(self, value: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        return value() if self.rng.random() < 0.5 else None


def states(d: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, lens = torch.arange(d.size("R"), dtype=torch.int32), torch.full((d.size("R"),), 10**6)
    if d.rng.random() < d.oddness:
        rows, lens = d.ints("R"), d.ints("R")
    return rows, d.starts("R", "T"), lens.int()


def linear(d: Draw) -> _core.Linear:
    quantize = d.rng.choice((None, "int8", "int4"))
    return _core.Linear(d.floats("O I"), d.maybe(lambda: d.floats("O")), quantize)


def run_linear(d: Draw) -> None:
    layer = linear(d)
    x, out = d.floats("T I"), d.floats("T O")
    if d.rng.random() < 0.5:
        x = x.float()
    layer.forward(x, out)


def run_blocks(d: Draw) -> None:
    name, size = d.rng.choice((("Q8_0", 34), ("Q4_0", 18), ("Q4_K", 144), ("Q6_K", 210)))
    blocks = d.bytes(f"O {size}*B")
    _core.dequantize(blocks, name, d.float32(f"O {256 if size > 99 else 32}*B"))
    layer = _core.Linear.from_blocks(blocks, name, d.maybe(lambda: d.float32("O")))
    layer.forward(torch.ones(d.size("T"), layer.in_features), d.float32("T O"))


def run_experts(d: Draw) -> None:
    gated = d.rng.random() < 0.7
    quantize = d.rng.choice((None, "int8", "int4"))
    wide = "2*I" if gated else "I"
    gate_up = [_core.Linear(d.floats(f"{wide} H"), None, quantize) for _ in range(d.size("E"))]
    down = [_core.Linear(d.floats("H I"), None, quantize) for _ in range(d.size("E"))]
    scores = d.rng.choice(("softmax", "softmax_of_chosen", "sigmoid"))
    limit = d.rng.choice((None, 7.0))
    experts = _core.Experts(
        gate_up, down, top_k=d.number(), scores=scores, gated=gated, limit=limit
    )
    experts.forward(d.floats("T H"), d.float32("T E"), d.floats("T H"))


def run_adapters(d: Draw) -> None:
    table = _core.AdapterTable(2)
    part = (d.number(), 1.0, d.floats("r I"), d.floats("O r"))
    table.set(1, _core.LowRank(d.size("I"), d.size("O"), [part] if d.rng.random() < 0.8 else []))
    selected = d.maybe(lambda: d.ints("T"))
    table.add(d.floats("T I"), d.floats("T O"), d.ints("T"), selected)


def run_sample(d: Draw) -> None:
    _core.sample(
        d.float32("S V"),
        d.float32("S"),
        d.ints("S"),
        d.float32("S"),
        d.float32("S"),
        torch.zeros(d.shape("S"), dtype=torch.int64),
        d.ints("S"),
        d.ints("S"),
        d.ints("S"),
        d.float32("S"),
        d.ints("S"),
        mask=d.maybe(lambda: d.ints("M W", -2)),
        mask_of_draw=d.maybe(lambda: d.ints("S", -1)),
    )


def run_constrained_sample(d: Draw) -> None:
    sampler = _core.SamplerStates(4)
    sampler.set(d.rng.randrange(5), [1, 2], num_candidates=d.number(), logit_bias=[(0, 1.0)])
    draws = d.size("S")
    _core.sample(
        d.float32("S V"),
        d.float32("S"),
        d.ints("S"),
        d.float32("S"),
        d.float32("S"),
        torch.zeros(draws, dtype=torch.int64),
        d.ints("S"),
        d.ints("S"),
        d.ints("S"),
        d.float32("S"),
        d.ints("S"),
        states=sampler,
        slots=d.ints("S"),
        last_tokens=d.ints("S", -1),
    )
    lists = _core.SequenceDraws.of(sampler, _core.Constraints(4), d.ints("S"), d.ints("S"))
    if lists is not None:
        written = lists.lists(d.ints("S", -1), d.number())
        written.write(torch.zeros(d.number() % 1000, dtype=torch.int32))
        lists.record(d.ints("S", -1))


def run_candidates(d: Draw) -> None:
    candidates = _core.Candidates.of_draws(d.ints("S C"), d.float32("S C"))
    joined = _core.Candidates.joined([(candidates, d.number() % 100), (None, d.number() % 100)])
    for found in (candidates, joined):
        if found is not None:
            found.of(d.number(), d.number())


def run_plan(d: Draw) -> None:
    sizes = d.rng.choice(((0,), (0, 0, 0, 1), (0, 1, 2)))
    lengths = [d.rng.choice(sizes) for _ in range(10)]
    plan = torch.cat([torch.tensor(lengths + [0] * 6, dtype=torch.int32), d.ints("P*16", -2)])
    rows = {name: d.ints("R") for name in ("last_token", "row_slot", "row_index", "row_adapter")}
    tokens = ("input_ids", "positions", "adapters", "score_rows", "score_targets")
    _core.apply_plan(
        plan,
        d.number(),
        computed=d.ints("R"),
        block_tables=d.ints("G R B"),
        rows=d.ints("R"),
        slot_mapping=d.ints("G T"),
        query_start_loc=d.ints("R"),
        seq_lens=d.ints("R"),
        sample_rows=d.ints("R"),
        **rows,
        **{name: d.ints("T") for name in tokens},
    )


def run_attention_work(d: Draw) -> None:
    _core.attention_work(
        d.ints("R"),
        d.starts("R", "T"),
        d.ints("R"),
        d.ints("W*8"),
        d.ints("W*3"),
        num_kv_heads=d.number(),
        group=d.number(),
        split_len=d.number(),
        decode_rows=d.number(),
        tile_rows=d.number(),
        window=d.number(),
    )


def run_paged_attention(d: Draw) -> None:
    d.sizes["D"] = d.rng.choice((0, 16, 32))
    d.sizes["h"] = d.rng.choice((1, 2))
    num_blocks = d.size("B")
    table = torch.zeros(d.size("R"), num_blocks, dtype=torch.int32)
    lens = torch.full((d.size("R"),), min(d.size("T"), 16 * num_blocks), dtype=torch.int32)
    _core.paged_attention(
        d.floats("T h*K D"),
        d.floats("N K 32*D"),
        d.or_odd(table),
        torch.arange(d.size("R"), dtype=torch.int32),
        d.starts("R", "T"),
        d.or_odd(lens),
        d.floats("T h*K D"),
        scale=d.or_odd(0.25),
        block_size=d.or_odd(16),
        window=d.rng.choice((None, d.number())),
        soft_cap=d.rng.choice((None, 5.0)),
        sinks=d.maybe(lambda: d.float32("h*K")),
    )


def run_full_attention(d: Draw) -> None:
    heads = d.size("h")
    _core.full_attention(
        d.floats("T h*D"),
        d.floats("T D"),
        d.floats("T D"),
        d.starts("S", "T"),
        d.floats("T h*D"),
        num_heads=d.rng.choice((heads, d.number())),
        scale=0.25,
        reach=d.rng.choice((None, d.number())),
        bias=d.maybe(lambda: d.float32("h 2*M")[:, 1:].contiguous()),
    )


def run_conv(d: Draw) -> None:
    gates = (d.floats("T C"), d.floats("T C")) if d.rng.random() < 0.5 else None
    d.sizes["K"] = d.rng.choice((0, 1, 2, 4))
    weight = d.float32("K C")
    _core.causal_conv(
        d.floats("T C"),
        weight,
        d.float32("R K C")[:, 1:].contiguous(),
        *states(d),
        d.floats("T C"),
        bias=d.maybe(lambda: d.float32("C")),
        gates=gates,
        has_silu=True,
    )


def run_delta(d: Draw) -> None:
    d.sizes["E"] = d.rng.choice((0, 3, 16, 32))
    d.sizes["v"] = d.sizes.setdefault("k", d.size("k")) * d.rng.choice((1, 2))
    keys, values = d.size("k") * d.size("D"), d.size("v") * d.size("E")
    _core.gated_delta(
        torch.ones(d.size("T"), 2 * keys + values, dtype=d.dtype),
        d.floats("T v*E"),
        d.floats("T 2*v"),
        d.float32("v"),
        d.float32("v"),
        d.float32("E"),
        1e-6,
        1.0,
        d.rng.random() < 0.5,
        d.float32("R v D E"),
        *states(d),
        d.floats("T v*E"),
    )


def run_scan(d: Draw) -> None:
    d.sizes["E"] = d.rng.choice((0, 3, 16, 32))
    d.sizes["G"] = d.rng.choice((1, d.size("h")))
    width = d.size("h") * d.size("E") + 2 * d.size("G") * d.size("D")
    _core.selective_scan(
        torch.ones(d.size("T"), width, dtype=d.dtype),
        d.floats("T h"),
        d.float32("h"),
        d.float32("h"),
        d.float32("h"),
        d.or_odd(d.size("G")),
        d.float32("R h D E"),
        *states(d),
        d.floats("T h*E"),
    )


CALLS: dict[str, Callable[[Draw], object]] = {
    "activate": lambda d: _core.activate(d.floats("T I"), "silu", d.floats("T I")),
    "activate_mul": lambda d: _core.activate_mul(d.floats("T 2*I"), "gelu", d.floats("T I")),
    "activate_mul_apart": lambda d: _core.activate_mul(
        d.floats("T I"), "silu", d.floats("T I"), d.floats("T I")
    ),
    "adapters": run_adapters,
    "add_layer_norm": lambda d: _core.add_layer_norm(
        d.floats("T H"), d.floats("T H"), d.floats("H"), None, 1e-6, d.floats("T H")
    ),
    "add_rms_norm": lambda d: _core.add_rms_norm(
        d.floats("T H"), d.floats("T H"), d.floats("H"), 1e-6, d.floats("T H")
    ),
    "add_scaled": lambda d: _core.add_scaled(d.floats("T H"), d.floats("T H"), 2.0),
    "apply_plan": run_plan,
    "attention_work": run_attention_work,
    "blocks": run_blocks,
    "candidates": run_candidates,
    "causal_conv": run_conv,
    "copy_states": lambda d: _core.copy_states(d.float32("R H"), d.ints("M 2")),
    "experts": run_experts,
    "full_attention": run_full_attention,
    "gate_by_sigmoid": lambda d: _core.gate_by_sigmoid(d.floats("T W"), d.floats("T W")),
    "gate_by_one": lambda d: _core.gate_by_sigmoid(d.floats("T W"), d.float32("T 1")),
    "gated_delta": run_delta,
    "gated_rms_norm": lambda d: _core.gated_rms_norm(
        d.floats("T W"), d.floats("T W"), d.maybe(lambda: d.floats("W")), d.number(), 1e-6
    ),
    "kv_write": lambda d: _core.kv_write(
        d.floats("T K 16"), d.floats("T K 16"), d.floats("N K 512"), d.ints("T", -1), 16
    ),
    "kv_write_odd": lambda d: _core.kv_write(
        d.floats("T K D"), d.floats("T K D"), d.floats("N K 32*D"), d.ints("T"), d.number()
    ),
    "layer_norm": lambda d: _core.layer_norm(
        d.floats("T H"), d.floats("H"), d.maybe(lambda: d.floats("H")), 1e-6, d.floats("T H")
    ),
    "linear": run_linear,
    "linear_bytes": lambda d: _core.linear_bytes(
        d.number(), d.number(), d.number(), d.rng.choice((None, "int8", "int4", "Q4_K"))
    ),
    "low_rank_bytes": lambda d: _core.low_rank_bytes(d.number(), d.number(), d.number(), 4),
    "paged_attention": run_paged_attention,
    "read_memory": lambda d: _core.read_memory(d.ints("W")),
    "rms_norm": lambda d: _core.rms_norm(
        d.floats("T H"), d.floats("H"), 1e-6, d.floats("T H"), 1.0
    ),
    "rms_norm_of_heads": lambda d: _core.rms_norm(
        d.floats("T h*D"), d.floats("D"), 1e-6, d.floats("T h*D")
    ),
    "rope": lambda d: _core.rope(
        d.floats("T h D"), d.ints("T"), d.float32("P D"), d.maybe(lambda: d.floats("D"))
    ),
    "sample": run_sample,
    "sample_with_states": run_constrained_sample,
    "scale": lambda d: _core.scale(d.floats("T W"), 2.0, d.rng.choice((None, 0.0, 5.0))),
    "score_tokens": lambda d: _core.score_tokens(
        d.float32("N V"), d.ints("N"), d.float32("N"), d.ints("N"), d.ints("N C"), d.float32("N C")
    ),
    "select_rows": lambda d: _core.select_rows(d.floats("N H"), d.ints("T", -1), d.floats("T H")),
    "selective_scan": run_scan,
}


@pytest.mark.parametrize("name", CALLS)
def test_odd_shapes_are_computed_or_refused(name: str) -> None:
    num_computed = 0
    for seed in range(NUM_CALLS):
        try:
            CALLS[name](Draw(seed))
        except Exception:
            continue
        except BaseException as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
        num_computed += 1
    # Else the shapes that fit each other are not drawn, and the test shows nothing.
    assert num_computed > 0
