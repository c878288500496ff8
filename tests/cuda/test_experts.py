"""The kernels of a mixture of experts against their twins and against the CPU's router."""

from dataclasses import dataclass

import pytest
import torch
from chairlift import _core
from chairlift.kernels.cuda.experts import SCORES, ExpertGate, gemm_shared_bytes, max_tiles
from chairlift.kernels.cuda.row_ops import ACTIVATIONS
from chairlift.kernels.cuda.sources import EXPERT_ROWS

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded, reversed_turns
from tests.cuda.instantiations import BF16, F16, instance
from tests.kernels import reference

SWIGLU = ExpertGate(2, ACTIVATIONS.index("silu"), torch.inf, 1.0, 0.0)
ROUNDING = {BF16: 2**-7, F16: 2**-10}
ROUTERS = {
    "softmax": {"scores": "softmax"},
    "softmax, divided by its sum": {"scores": "softmax", "min_weight_sum": 0.0},
    "softmax of the chosen": {"scores": "softmax_of_chosen", "multiplier": 0.3},
    "softmax, a bias, a least sum": {"scores": "softmax", "bias": True, "min_weight_sum": 0.7},
    "sigmoid, a bias, factors": {
        "scores": "sigmoid",
        "bias": True,
        "factors": True,
        "min_weight_sum": 1e-12,
        "multiplier": 2.5,
    },
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def route(
    run: Launch,
    logits: torch.Tensor,
    top_k: int,
    scores: str,
    bias: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    min_weight_sum: float | None = None,
    multiplier: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token and their weights, `[T, top_k]`."""
    num_tokens, num_experts = logits.shape
    chosen = guarded(torch.full((num_tokens, top_k), -1, dtype=torch.int32))
    weights = guarded(torch.full((num_tokens, top_k), torch.nan))
    numbers = (None if own is None else guarded(own) for own in (bias, factors))
    arguments = [chosen, weights, guarded(logits), *numbers, num_experts, num_tokens, num_experts]
    arguments += [
        top_k,
        SCORES.index(scores),
        -1.0 if min_weight_sum is None else min_weight_sum,
        multiplier,
    ]
    run(instance("route_experts"), (-(-num_tokens // 4),), 128, 16 * num_experts, arguments)
    return chosen, weights


def route_on_cpu(
    logits: torch.Tensor,
    bias: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    **rules: object,
) -> torch.Tensor:
    """The weight of each expert, `[T, num_experts]`: an expert computes a one at its own place."""
    num = logits.shape[1]
    first = [_core.Linear(torch.zeros(2, num)) for _ in range(num)]
    ones = torch.eye(num)
    second = [_core.Linear(torch.zeros(num, 1), one) for one in ones]
    added, times = (None if part is None else part.tolist() for part in (bias, factors))
    experts = _core.Experts(first, second, bias=added, factors=times, **rules)
    out = torch.empty(logits.shape)
    experts.forward(torch.zeros(logits.shape), logits, out)
    return out


def group(
    run: Launch, chosen: torch.Tensor, num_experts: int, tile_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The order of the pairs, and the tiles."""
    num_pairs = chosen.numel()
    order = guarded(torch.full((num_pairs,), -1, dtype=torch.int32))
    room = max_tiles(num_pairs, num_experts, tile_rows)
    tiles = guarded(torch.full((room, 3), -7, dtype=torch.int32))
    arguments = [order, tiles, guarded(chosen), num_pairs, num_experts, tile_rows, room]
    run(instance("group_by_expert"), (1,), 1024, 12 * (num_experts + 1), arguments)
    return order, tiles


@dataclass
class Mixture:
    """Weights of random numbers."""

    num: int
    hidden: int
    inner: int
    dtype: torch.dtype
    has_bias: bool = False
    gate: ExpertGate = SWIGLU

    def __post_init__(self) -> None:
        wide, size = self.gate.parts * self.inner, self.hidden
        self.gate_up = guarded((numbers(self.num, wide, size) / size**0.5).to(self.dtype))
        self.down = numbers(self.num, size, self.inner, seed=1) / self.inner**0.5
        self.down = guarded(self.down.to(self.dtype))
        biases = numbers(self.num, wide, seed=2), numbers(self.num, size, seed=3)
        self.biases = [guarded(own.to(self.dtype)) if self.has_bias else None for own in biases]

    def run(
        self, run: Launch, x: torch.Tensor, chosen: torch.Tensor, tile_rows: int
    ) -> torch.Tensor:
        """What each pair's expert computes, `[T, top_k, H]`."""
        order, tiles = group(run, chosen, self.num, tile_rows)
        num_pairs, top_k = chosen.numel(), chosen.shape[1]
        between = guarded(torch.full((num_pairs, self.inner), torch.nan, dtype=self.dtype))
        out = guarded(torch.full((*chosen.shape, self.hidden), torch.nan, dtype=self.dtype))
        columns, shared = 64 if tile_rows == 16 else 128, gemm_shared_bytes(tile_rows)
        arguments = [between, guarded(x), self.gate_up, self.biases[0], order, tiles]
        sizes = self.hidden, self.inner
        run(
            instance("expert_gate_up", self.dtype, tile_rows),
            (len(tiles), -(-self.gate.parts * self.inner // columns)),
            *(128, shared, [*arguments, self.hidden, *sizes, top_k, *self.gate]),
        )
        run(
            instance("expert_down", self.dtype, tile_rows),
            (len(tiles), -(-self.hidden // columns)),
            *(128, shared, [out, between, self.down, self.biases[1], order, tiles, *sizes]),
        )
        return out

    def twin(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The same in float64."""
        parts, activation, limit, alpha, offset = self.gate
        experts = chosen.long()
        wide = torch.einsum("th,tkih->tki", x.double(), self.gate_up.double()[experts])
        if self.biases[0] is not None:
            wide = wide + self.biases[0].double()[experts]
        if limit < torch.inf:
            gates, ups = wide.chunk(2, dim=-1)
            gates, ups = gates.clamp(max=limit), ups.clamp(-limit, limit)
            between = (ups + offset) * gates * torch.sigmoid(alpha * gates)
        else:
            twin = reference.activate_mul if parts == 2 else reference.activate
            between = twin(wide, ACTIVATIONS[activation])
        out = torch.einsum("tki,tkhi->tkh", between, self.down.double()[experts])
        return out if self.biases[1] is None else out + self.biases[1].double()[experts]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("num_experts", "top_k"), [(5, 2), (40, 32), (128, 8), (3, 3)])
def test_the_router_has_the_bits_of_the_cpu(
    run: Launch, router: str, num_experts: int, top_k: int
) -> None:
    rules = dict(ROUTERS[router])
    for part in ("bias", "factors"):
        rules[part] = numbers(num_experts, seed=3) if rules.pop(part, False) else None
    logits = 3 * numbers(9, num_experts)
    logits[1] = 0.5  # every score is the same
    logits[2, ::2] = logits[2, 0]
    logits[3, 1:] = -200.0  # all but one underflow
    logits[4, 0], logits[5, 1] = torch.nan, -torch.inf
    chosen, weights = route(run, logits, top_k, **rules)
    assert (chosen.diff(dim=1) > 0).all()
    got = (weights[..., None] * torch.eye(num_experts)[chosen.long()]).sum(1)
    expected = route_on_cpu(logits, top_k=top_k, **rules)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def choices(kind: str, num_tokens: int, num_experts: int, top_k: int) -> torch.Tensor:
    """Ascending experts of each token."""
    if kind == "one":  # all tokens at the same experts, in the middle
        first = (num_experts - top_k) // 2
        return torch.arange(first, first + top_k, dtype=torch.int32).expand(num_tokens, -1).clone()
    drawn = numbers(num_tokens, num_experts, seed=5)
    if kind == "skewed":  # some experts have no token, others most of them
        drawn += torch.linspace(4, 0, num_experts)
    return drawn.topk(top_k, dim=1).indices.sort(dim=1).values.int()


@pytest.mark.parametrize("kind", ["even", "skewed", "one"])
@pytest.mark.parametrize("tile_rows", EXPERT_ROWS)
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"), [(1, 8, 2), (150, 5, 2), (70, 100, 3), (33, 32, 4)]
)
def test_pairs_are_grouped_by_expert(
    run: Launch, kind: str, tile_rows: int, num_tokens: int, num_experts: int, top_k: int
) -> None:
    chosen = choices(kind, num_tokens, num_experts, top_k)
    order, tiles = group(run, chosen, num_experts, tile_rows)
    experts = chosen.flatten()[order.long()]
    assert torch.equal(experts, chosen.flatten().sort().values)
    assert torch.equal(order.sort().values, torch.arange(chosen.numel(), dtype=torch.int32))
    needed = tiles[tiles[:, 0] >= 0]
    assert (tiles[len(needed) :, 0] == -1).all()
    expected, begin = [], 0
    for expert, count in enumerate(chosen.flatten().bincount(minlength=num_experts).tolist()):
        expected += [
            [expert, begin + first, min(tile_rows, count - first)]
            for first in range(0, count, tile_rows)
        ]
        begin += count
    assert needed.tolist() == expected


def test_the_worst_choice_fills_the_tiles(run: Launch) -> None:
    # Seven experts have one row each, and one has all others, one row behind whole tiles.
    chosen = torch.tensor([*range(7), *[7] * 33], dtype=torch.int32)[:, None]
    _, tiles = group(run, chosen, 8, 16)
    assert (tiles[:, 0] >= 0).all()
    assert max_tiles(3, 8, 16) == 3


@pytest.mark.parametrize("kind", ["even", "skewed", "one"])
@pytest.mark.parametrize("tile_rows", EXPERT_ROWS)
@pytest.mark.parametrize(
    ("hidden", "inner", "dtype", "has_bias"),
    [(64, 32, BF16, False), (136, 200, BF16, True), (8, 72, F16, True), (320, 8, F16, False)],
)
def test_the_layers_match_their_twin(
    run: Launch,
    kind: str,
    tile_rows: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    has_bias: bool,
) -> None:
    mixture = Mixture(6, hidden, inner, dtype, has_bias)
    chosen = choices(kind, 41, 6, 2)
    x = numbers(41, hidden, seed=4).to(dtype)
    out = mixture.run(run, x, chosen, tile_rows)
    expected = mixture.twin(x, chosen)
    tolerance = ROUNDING[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=2 * tolerance)


def test_clamped_gates_are_those_of_gpt_oss(run: Launch) -> None:
    gate = SWIGLU._replace(limit=1.5, alpha=1.7, offset=1.0)
    mixture = Mixture(4, 64, 40, BF16, has_bias=True, gate=gate)
    x, chosen = 4 * numbers(9, 64, seed=4).to(BF16), choices("even", 9, 4, 2)
    out = mixture.run(run, x, chosen, 16)
    torch.testing.assert_close(out.double(), mixture.twin(x, chosen), rtol=2**-7, atol=2**-5)


@pytest.mark.parametrize("tile_rows", EXPERT_ROWS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu2"])
def test_experts_have_any_activation_and_need_no_gate(
    run: Launch, activation: str, parts: int, tile_rows: int
) -> None:
    gate = SWIGLU._replace(parts=parts, activation=ACTIVATIONS.index(activation))
    mixture = Mixture(4, 64, 136, BF16, has_bias=True, gate=gate)
    x, chosen = numbers(30, 64, seed=4).to(BF16), choices("skewed", 30, 4, 2)
    out = mixture.run(run, x, chosen, tile_rows)
    torch.testing.assert_close(out.double(), mixture.twin(x, chosen), rtol=2**-7, atol=2**-6)


def test_a_row_has_the_same_bits_alone_and_crowded(run: Launch) -> None:
    mixture = Mixture(5, 136, 72, BF16)
    x, chosen = numbers(90, 136, seed=4).to(BF16), choices("skewed", 90, 5, 2)
    x[7] = torch.nan  # nor does a neighbour's NaN reach it
    together = mixture.run(run, x, chosen, 64)
    others = [row for row in range(90) if row != 7]
    for rows, tile_rows in ((others, 16), ([3], 16), ([3], 64), ([89, 11, 2], 16)):
        alone = mixture.run(run, x[rows], chosen[rows], tile_rows)
        assert torch.equal(alone, together[rows])
    assert together[7].isnan().all()


def test_no_result_depends_on_which_block_or_thread_goes_first(run: Launch) -> None:
    mixture = Mixture(5, 64, 32, BF16)
    x, chosen = numbers(40, 64, seed=4).to(BF16), choices("even", 40, 5, 2)
    expected = mixture.run(run, x, chosen, 16)
    with (
        reversed_turns(instance("group_by_expert")),
        reversed_turns(instance("expert_gate_up", BF16, 16)),
        reversed_turns(instance("expert_down", BF16, 16)),
    ):
        assert torch.equal(mixture.run(run, x, chosen, 16), expected)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("num_tokens", "hidden", "top_k"), [(3, 64, 2), (2, 2056, 5), (4, 8, 1)])
def test_the_sum_matches_its_twin(
    run: Launch, dtype: torch.dtype, num_tokens: int, hidden: int, top_k: int
) -> None:
    parts = guarded(numbers(num_tokens, top_k, hidden).to(dtype))
    weights = guarded(numbers(num_tokens, top_k, seed=1))
    out = guarded(torch.full((num_tokens, hidden), torch.nan, dtype=dtype))
    blocks = -(-hidden // 2048)
    arguments = [out, parts, weights, hidden, top_k]
    run(instance("sum_experts", dtype), (num_tokens, blocks), 256, 0, arguments)
    expected = torch.einsum("tkh,tk->th", parts.double(), weights.double())
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[dtype] / 2, atol=1e-5)
