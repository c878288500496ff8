"""Readable reference implementations of the kernels, in plain PyTorch.

Each computes in the dtype of its input (give float64 for an oracle) and takes the same arguments
as its kernel. The twin of attention over the paged cache is in `chairlift.attention.reference`;
the one here is dense, and also has features that few models use.
"""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + b`."""
    y = x @ weight.T
    return y if bias is None else y + bias


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of -127..=127 and float32 `[T, 1]`, the value of 1; nearest, ties to even."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    most = torch.tensor(127.0)  # a tensor: a number over a tensor is rounded twice
    inverse = torch.where((most / largest).isfinite(), most / largest, 0.0)
    return torch.round(x * inverse), largest / most


def linear_int8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear with a scale per row of both; float32. The kernel has the same bits."""
    x, x_scale = quantize_rows(x)
    weight, scale = quantize_rows(weight)
    sums = (x.long() @ weight.long().T).float()
    y = sums * x_scale * scale.T
    return y if bias is None else y + bias.float()


def quantize_int4(weight: Tensor, group: int = 32) -> tuple[Tensor, Tensor]:
    """Return integers of -8..=7 `[N, G, group]` and scales `[N, G]` that bfloat16 holds.

    Of eight scales around the one that maps the largest magnitude to -8, the one with the least
    squared error counts.
    """
    columns = weight.shape[1]
    weight = torch.nn.functional.pad(weight.float(), (0, -columns % group))
    w = weight.view(len(weight), -1, group)
    largest = w.gather(-1, w.abs().argmax(-1, keepdim=True))
    best, scales = torch.zeros_like(w), torch.zeros_like(largest)
    least = torch.full_like(largest, torch.inf)
    for part in (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 1.04, 1.08):
        scale = (largest * torch.tensor(part) / -8.0).bfloat16().float()
        inverse = torch.where((1.0 / scale).isfinite(), 1.0 / scale, 0.0)
        tried = torch.round((w * inverse).clamp(-8, 7))
        squares = (w - scale * tried).square().view(*w.shape[:2], -1, 8).unbind(-2)
        lanes = sum(squares[1:], squares[0]).unbind(-1)
        error = sum(lanes[1:], lanes[0]).unsqueeze(-1)
        better = error < least
        best, scales = torch.where(better, tried, best), torch.where(better, scale, scales)
        least = torch.where(better, error, least)
    return best, scales.squeeze(-1)


def linear_int4(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear with a scale per row of `x` and per group of a weight's row; float32, same bits."""
    weight, scales = quantize_int4(weight)
    x, x_scale = quantize_rows(x)
    x = torch.nn.functional.pad(x, (0, weight[0].numel() - x.shape[1]))
    x = x.view(len(x), -1, weight.shape[-1])
    sums = torch.einsum("tgk,ngk->gtn", x.double(), weight.double()).float()
    y = torch.zeros(x.shape[0], weight.shape[0])
    for group, sum_of_group in enumerate(sums):
        y = y + sum_of_group * scales[:, group]
    y = y * x_scale
    return y if bias is None else y + bias.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight` over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope(
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Rotate `[T, num_heads, head_dim]`; coordinate d pairs with d + head_dim / 2."""
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    cos, sin = cos_sin[positions].to(x.dtype).unsqueeze(1).chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of the last tokens of one sequence, `[Q, num_heads, head_dim]`.

    `key` and `value` are `[L, num_kv_heads, head_dim]`. A token sees itself and the `window - 1`
    before it. `softcap` > 0 makes the scores `softcap * tanh(score / softcap)`. A sink
    `[num_heads]` is the score of one more key, whose value is zero.
    """
    (num_queries, num_heads, _), length = query.shape, len(key)
    key, value = (x.repeat_interleave(num_heads // x.shape[1], dim=1) for x in (key, value))
    scores = torch.einsum("qhd,lhd->hql", query, key) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(length - num_queries, length).unsqueeze(-1)
    token = torch.arange(length)
    is_seen = token <= position
    if window is not None:
        is_seen &= token > position - window
    scores = scores.masked_fill(~is_seen, -torch.inf)
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, num_queries, 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :length]
    return torch.einsum("hql,lhd->qhd", weights, value)


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def probabilities(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> Tensor:
    """What `sample` draws from: one row's distribution after temperature and filters."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).to(logits.dtype)
    p = torch.softmax(logits / temperature, dim=-1)
    order = torch.sort(logits, descending=True, stable=True).indices  # equals: lowest id first
    kept = order[: top_k or None]
    share = p[kept].cumsum(0) / p[kept].sum()
    kept = kept[: int((share < top_p).sum()) + 1] if top_p < 1 else kept
    kept = kept[p[kept] >= min_p * p.max()]
    filtered = torch.zeros_like(p)
    filtered[kept] = p[kept]
    return filtered / filtered.sum()
