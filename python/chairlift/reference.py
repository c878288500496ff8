"""Plain PyTorch twins of the kernels, for tests and for reading: what is meant, not how it is fast.

Each computes in the dtype of its input (give float64 for an oracle) and takes the same arguments
as its kernel. The twin of attention is in `chairlift.attention.reference`.
"""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + b`."""
    y = x @ weight.T
    return y if bias is None else y + bias


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
    """Rotates `[T, num_heads, head_dim]`; coordinate d pairs with d + head_dim / 2."""
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    cos, sin = cos_sin[positions].to(x.dtype).unsqueeze(1).chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


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
