"""Mixtures of experts: the router and the layers of each expert, against their twins."""

from collections.abc import Callable

import pytest
import torch
from chairlift import _core
from chairlift.model.specs.share import Share

from tests.kernels import reference

NUM, HIDDEN, INNER = 5, 32, 48
ROUTERS = {
    "softmax": {"scores": "softmax"},
    "softmax, normalized": {"scores": "softmax", "min_weight_sum": 0.0},
    "softmax of the chosen": {"scores": "softmax_of_chosen"},
    "sigmoid, with a bias": {"scores": "sigmoid", "bias": True, "min_weight_sum": 1e-12},
}


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def route(
    logits: torch.Tensor,
    top_k: int,
    scores: str,
    bias: torch.Tensor | None = None,
    min_weight_sum: float | None = None,
) -> torch.Tensor:
    """Return the weight of each expert, `[T, num_experts]`, 0 for those that are not chosen."""
    choices = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid()}
    own = choices.get(scores, logits)
    chosen = (own if bias is None else own + bias).topk(top_k, dim=-1).indices
    weights = own.gather(-1, chosen)
    if scores == "softmax_of_chosen":
        weights = weights.softmax(-1)
    if min_weight_sum is not None:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=min_weight_sum)
    return torch.zeros_like(logits).scatter(-1, chosen, weights)


def experts_twin(
    x: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    middle: Callable[[torch.Tensor], torch.Tensor] = lambda x: reference.activate_mul(x, "silu"),
) -> torch.Tensor:
    """Sum the feed-forwards of all experts, `[T, H]`, by the weights `[T, num_experts]`.

    `gate_up` is `[num_experts, 2 I, H]` and `down` `[num_experts, H, I]`; `middle` is between both.
    """
    inner = middle(torch.einsum("th,eih->tei", x, gate_up))
    return torch.einsum("tei,ehi,te->th", inner, down, weights)


def weights():
    return randn(NUM, 2 * INNER, HIDDEN, seed=1) / 6, randn(NUM, HIDDEN, INNER, seed=2) / 7


def packed(dtype=torch.float32, quantize=None, **settings):
    layers = (
        [_core.Linear(each.to(dtype), None, quantize) for each in part.unbind()]
        for part in weights()
    )
    return _core.Experts(*layers, **{"top_k": 2, "scores": "softmax", **settings})


def run(experts, x, logits):
    out = torch.full_like(x, torch.nan)
    experts.forward(x, logits, out)
    return out


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("top_k", [1, 3, NUM])
def test_experts_agree_with_their_twin(router, top_k):
    settings = {"top_k": top_k, **ROUTERS[router]}
    bias = randn(NUM, seed=4) if settings.pop("bias", False) else None
    x, logits = randn(9, HIDDEN), randn(9, NUM, seed=3)
    own = None if bias is None else bias.tolist()
    out = run(packed(bias=own, **settings), x, logits)
    chosen = route(logits.double(), bias=bias, **settings)
    expected = experts_twin(x.double(), chosen, *(part.double() for part in weights()))
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "quantize"),
    [
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.bfloat16, "int8"),
        (torch.float32, "int4"),
    ],
)
def test_a_token_has_the_same_bits_whoever_shares_its_experts(dtype, quantize):
    experts = packed(dtype, quantize)
    x, logits = randn(40, HIDDEN).to(dtype), randn(40, NUM, seed=3)
    together = run(experts, x, logits)
    for rows in ([0], [7, 3], list(range(39, 10, -1))):
        assert torch.equal(run(experts, x[rows], logits[rows]), together[rows])


def test_experts_without_a_gate_agree_with_their_twin():
    x, logits = randn(9, HIDDEN), randn(9, NUM, seed=3)
    gate_up, down = weights()
    up = gate_up[:, :INNER].contiguous()
    layers = ([_core.Linear(each) for each in part.unbind()] for part in (up, down))
    rules = {"top_k": 2, "scores": "sigmoid", "multiplier": 2.5}
    experts = _core.Experts(*layers, activation="relu2", gated=False, **rules)
    chosen = 2.5 * route(logits.double(), 2, "sigmoid")
    parts = x.double(), chosen, up.double(), down.double()
    expected = experts_twin(*parts, lambda inner: inner.relu().square())
    torch.testing.assert_close(run(experts, x, logits).double(), expected, atol=1e-5, rtol=1e-5)
    gated = _core.Experts(*([_core.Linear(each) for each in part] for part in (up, down)), **rules)
    with pytest.raises(ValueError, match=f"from {HIDDEN} to {2 * INNER} and"):
        run(gated, x, logits)


def test_a_clamped_gate_is_that_of_gpt_oss():
    x, logits = 9 * randn(4, HIDDEN), randn(4, NUM, seed=3)
    out = run(packed(limit=1.5, alpha=1.7), x, logits)
    gate_up, down = (part.double() for part in weights())
    gate, up = torch.einsum("th,eih->tei", x.double(), gate_up).chunk(2, dim=-1)
    gate, up = gate.clamp(max=1.5), up.clamp(-1.5, 1.5)
    inner = (up + 1) * gate * torch.sigmoid(1.7 * gate)
    chosen = route(logits.double(), 2, "softmax")
    expected = torch.einsum("tei,ehi,te->th", inner, down, chosen)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-5)


def test_each_expert_adds_its_biases():
    x, logits = randn(4, HIDDEN), randn(4, NUM, seed=3)
    gate_up, down = weights()
    first, second = randn(NUM, 2 * INNER, seed=5), randn(NUM, HIDDEN, seed=6)
    layers = (
        [_core.Linear(weight, bias) for weight, bias in zip(*parts, strict=True)]
        for parts in ((gate_up, first), (down, second))
    )
    out = run(_core.Experts(*layers, top_k=2, scores="softmax_of_chosen"), x, logits)
    inner = reference.activate_mul(torch.einsum("th,eih->tei", x, gate_up) + first, "silu")
    chosen = route(logits, 2, "softmax_of_chosen")
    expected = torch.einsum(
        "teh,te->th", torch.einsum("tei,ehi->teh", inner, down) + second, chosen
    )
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "quantize"),
    [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")],
    ids=["float32", "bfloat16", "int8"],
)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_parts_of_the_columns_have_the_bits_of_all(num_ranks, dtype, quantize):
    gate_up, down = weights()
    x, logits = randn(9, HIDDEN).to(dtype), randn(9, NUM, seed=3)
    expected = run(packed(dtype, quantize), x, logits)
    parts, shares = [], [Share(rank, num_ranks) for rank in range(num_ranks)]
    for share in shares:
        inner = share.columns(INNER)
        first = torch.cat([half[:, inner] for half in gate_up.split(INNER, dim=1)], dim=1)
        second = down[:, share.columns(HIDDEN)]
        layers = (
            [_core.Linear(each.contiguous().to(dtype), None, quantize) for each in part.unbind()]
            for part in (first, second)
        )
        parts.append(_core.Experts(*layers, top_k=2, scores="softmax"))
    inside = [torch.empty(18, share.width(INNER)) for share in shares]
    for part, numbers in zip(parts, inside, strict=True):
        part.inside(x, logits, numbers)
    outside = [torch.empty(9, share.width(HIDDEN), dtype=dtype) for share in shares]
    for part, numbers in zip(parts, outside, strict=True):
        part.outside(torch.cat(inside, dim=1), logits, numbers)
    assert torch.equal(torch.cat(outside, dim=1), expected)
    with pytest.raises(ValueError, match=r"out: expected \[18, "):
        parts[0].inside(x, logits, torch.empty(9, inside[0].shape[1]))
    with pytest.raises(ValueError, match=rf"x: expected \[18, {INNER}\]"):
        parts[0].outside(inside[0], logits, outside[0])


def test_layers_that_do_not_fit_are_refused():
    layer, other = _core.Linear(torch.ones(8, 4)), _core.Linear(torch.ones(4, 4))
    rules = {"top_k": 1, "scores": "softmax"}
    with pytest.raises(ValueError, match="down: expected 1 layers"):
        _core.Experts([layer], [], **rules)
    with pytest.raises(ValueError, match="gate_up, down: expected layers from 4 to 8"):
        run(_core.Experts([other], [other], **rules), torch.ones(1, 4), torch.ones(1, 1))
    with pytest.raises(ValueError, match="down: expected layers from 4 to 4, got others"):
        _core.Experts([layer, layer], [other, layer], **rules)
    with pytest.raises(ValueError, match="gate_up: expected at most 2 outputs for each input"):
        _core.Experts([_core.Linear(torch.ones(10, 4))], [other], **rules)
    with pytest.raises(ValueError, match="limit: expected None without a gate"):
        _core.Experts([other], [other], gated=False, limit=1.0, **rules)
    with pytest.raises(ValueError, match="scores: expected one of softmax"):
        _core.Experts([layer], [other], top_k=1, scores="loud")
    experts = _core.Experts([layer], [other], **rules)
    with pytest.raises(ValueError, match=r"logits: expected \[3, 1\], got \[3, 2\]"):
        run(experts, torch.ones(3, 4), torch.ones(3, 2))
    with pytest.raises(ValueError, match="top_k: expected 1 to 1, got 2"):
        run(
            _core.Experts([layer], [other], top_k=2, scores="softmax"),
            torch.ones(1, 4),
            torch.ones(1, 1),
        )
