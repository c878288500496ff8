"""Readable reference implementations of the kernels, in plain PyTorch.

Each computes in the dtype of its input (give float64 for an oracle) and takes the same arguments
as its kernel. The twin of attention over the paged cache is in `tests/attention/reference.py`;
the one here is dense, and also has features that few models use.
"""

from collections.abc import Sequence

import torch
from chairlift.api.sampler_options import SamplerOptions
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + b`."""
    y = x @ weight.T
    return y if bias is None else y + bias


def add_low_rank(
    x: Tensor,
    out: Tensor,
    updates: Sequence[Sequence[tuple[int, float, Tensor, Tensor]]],
    adapters: Tensor,
) -> Tensor:
    """Return `out` and, of each row, `scale * x A^T B^T` for ranges of its adapter's outputs.

    Args:
        x: `[R, in_features]`.
        out: `[R, out_features]`.
        updates: Of each slot from 1 on the first output, scale, A `[rank, in_features]` and B
            `[outputs, rank]` of each part.
        adapters: `[R]`, the slot of each row; 0 is none.
    """
    out = out.clone()
    for row, slot in enumerate(adapters.tolist()):
        for first, scale, a, b in updates[slot - 1] if slot else ():
            out[row, first : first + len(b)] += scale * (b @ (a @ x[row]))
    return out


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of -127..=127 and float32 `[..., 1]`, the value of 1; ties go to even."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    most = torch.tensor(127.0)  # a tensor: a number over a tensor is rounded twice
    inverse = torch.where((most / largest).isfinite(), most / largest, 0.0)
    return torch.round(x * inverse), largest / most


GROUP = 32
"""Neighbours along a row that share a scale in quantized layers."""
WIDE_GROUP = 128
"""The same of layers that are quantized to int8; what is left of their rows is in groups of 32."""


def quantize_inputs(x: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """Return the integers `[T, G, group]` of `quantize_rows` and their scales; zeros fill rows."""
    x = torch.nn.functional.pad(x, (0, -x.shape[1] % group))
    return quantize_rows(x.reshape(len(x), -1, group))


def linear_in_groups(
    x: Tensor, codes: Tensor, scales: Tensor, minima: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Linear with weights `scales * codes + minima` and inputs in eight bits; float32, same bits.

    Args:
        x: `[T, K]`.
        codes: Integers `[N, G, group]`, or `[N, G, 2, 16]` where halves of a group have scales.
        scales: float32 `[N, G]` or `[N, G, 2]`.
        minima: float32 `[N, G]`.
        bias: `[N]`, or `[T, N]`.
    """
    x, unit = quantize_inputs(x, codes[0, 0].numel())
    parts = scales.view(*scales.shape[:2], -1).unbind(-1)
    x_parts, w_parts = (t.double().chunk(len(parts), -1) for t in (x, codes.flatten(2)))
    y = torch.zeros(len(x), len(codes)) if bias is None else bias.float().expand(len(x), -1)

    def add(product: Tensor) -> Tensor:  # of doubles, exact: a fused multiply-add
        return (product + y.double()).float()

    for group in range(codes.shape[1]):
        for x_part, w_part, scale in zip(x_parts, w_parts, parts, strict=True):
            sums = x_part[:, group] @ w_part[:, group].T
            y = add(sums * (scale[:, group] * unit[:, group]).double())
        if minima is not None:
            weighted = x[:, group].sum(-1, keepdim=True) * unit[:, group]
            y = add(minima[:, group].double() * weighted.double())
    return y


def rotated(x: Tensor) -> Tensor:
    """Multiply rows `[..., K]` by Hadamard matrices of 64, for the rest of 16, then of 4.

    Each is divided by the root of its size; up to three numbers stay.

    Returns:
        `[..., K]`, in float64 where `x` is, else in float32.
    """
    x = x if x.dtype == torch.float64 else x.float()
    first, parts = 0, []
    for size in (64, 16, 4, 1):
        end = first + (x.shape[-1] - first) // size * size
        part = x[..., first:end].flatten(0, -2)
        distance = size // 2
        while distance > 0:
            low, high = part.reshape(len(part), -1, 2, distance).unbind(-2)
            part, distance = torch.stack((low + high, low - high), -2).flatten(1), distance // 2
        parts.append((part * size**-0.5).view(*x.shape[:-1], -1))
        first = end
    return torch.cat(parts, dim=-1)


def rotated_head(x: Tensor) -> Tensor:
    """Return `rotated` heads `[..., D]`, whose blocks of 64 are mixed where D is a power of two."""
    x, width = rotated(x), x.shape[-1]
    distance = 64
    while distance < width and width.bit_count() == 1:
        low, high = x.unflatten(-1, (-1, 2, distance)).unbind(-2)
        x = (torch.stack((low + high, low - high), -2) * 0.5**0.5).flatten(-3)
        distance *= 2
    return x


def linear_int8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear with rotated weights in eight bits, a scale per wide group, and rotated inputs."""
    x, weight, y = rotated(x), rotated(weight), bias
    whole = x.shape[1] - x.shape[1] % WIDE_GROUP
    for part, group in ((slice(whole), WIDE_GROUP), (slice(whole, None), GROUP)):
        if x[:, part].numel():
            codes, scales = quantize_int8(weight[:, part], group)
            y = linear_in_groups(x[:, part], codes, scales, None, y)
    assert y is not None
    return y


def linear_int4(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear with weights in four bits, a scale and a minimum per group."""
    return linear_in_groups(x, *quantize_int4(weight), bias)


def _groups(weight: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """Return `[N, G, group]`, filled up with a row's last number, and which groups are finite."""
    weight = weight.float()
    last = weight[:, -1:].expand(-1, -weight.shape[1] % group)
    w = torch.cat((weight, last), dim=1).view(len(weight), -1, group)
    return w, w.isfinite().all(-1)


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)


def quantize_int8(weight: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """Return integers of -127..=127 `[N, G, group]` and scales `[N, G]` that float16 holds."""
    w, is_finite = _groups(weight, group)
    scale = (w.abs().amax(-1, keepdim=True) / torch.tensor(127.0)).half().float()
    codes = torch.round((w * _finite(1.0 / scale)).clamp(-127, 127)).nan_to_num()
    return codes, scale.squeeze(-1).where(is_finite, torch.nan)


def quantize_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers of 0..=15 `[N, G, 32]`, scales and minima `[N, G]` that float16 holds.

    Of twelve ranges of codes, each with its best scale and minimum by least squares, the one with
    the least squared error counts.
    """
    w, is_finite = _groups(weight)

    def total(x: Tensor) -> Tensor:  # over eight lanes, then over these
        lanes = x.view(*x.shape[:2], -1, 8).unbind(-2)
        lanes = sum(lanes[1:], lanes[0]).unbind(-1)
        return sum(lanes[1:], lanes[0]).unsqueeze(-1)

    def rounded(minimum: Tensor, inverse: Tensor) -> Tensor:
        return torch.round(((w - minimum) * inverse).clamp(0, 15))

    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    best, scales, minima = torch.zeros_like(w), torch.zeros_like(low), torch.zeros_like(low)
    least, count = torch.full_like(low, torch.inf), torch.tensor(float(GROUP))
    for steps in (15, 14.25, 14.5, 14.75, 15.25, 15.5, 15.75, 16, 16.25, 16.5, 16.75, 17):
        codes = rounded(low, _finite(torch.tensor(float(steps)) / (high - low)))
        ones, squares = codes.sum(-1, keepdim=True), codes.square().sum(-1, keepdim=True)
        weights, products = total(w), total(w * codes)
        determinant = count * squares - ones * ones
        scale = (count * products - ones * weights) / determinant
        minimum = (squares * weights - ones * products) / determinant
        is_flat = determinant <= 0
        scale = torch.where(is_flat, 0.0, scale).half().float()
        minimum = torch.where(is_flat, weights / count, minimum).half().float()
        codes = rounded(minimum, _finite(1.0 / scale))
        error = total((w - (scale * codes + minimum)).square())
        better = error < least
        best = torch.where(better, codes, best)
        scales, minima = torch.where(better, scale, scales), torch.where(better, minimum, minima)
        least = torch.where(better, error, least)
    scales, minima = (t.squeeze(-1).where(is_finite, torch.nan) for t in (scales, minima))
    return best.nan_to_num(), scales, minima


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight` over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """`(x - mean(x)) / deviation(x) * weight + bias` over the last axis."""
    x = x - x.mean(-1, keepdim=True)
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return y if bias is None else y + bias


def rope(
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    is_interleaved: bool = False,
) -> Tensor:
    """Rotate the first numbers of each head, which pair by halves or with their neighbours."""
    x = x if norm_weight is None else rms_norm(x, norm_weight, eps)
    x, rest = torch.tensor_split(x, [cos_sin.shape[1]], dim=-1)
    cos, sin = cos_sin[positions].to(x.dtype).unsqueeze(1).chunk(2, dim=-1)
    a, b = (x[..., ::2], x[..., 1::2]) if is_interleaved else x.chunk(2, dim=-1)
    pairs = a * cos - b * sin, b * cos + a * sin
    rotated = torch.stack(pairs, -1).flatten(-2) if is_interleaved else torch.cat(pairs, -1)
    return torch.cat((rotated, rest), -1)


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


def full_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    scale: float,
    reach: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention of packed sequences to all tokens of each.

    Args:
        query: `[T, num_heads, head_dim]`.
        key: `[T, num_kv_heads, head_dim]`; sequences lie one behind the other.
        value: As the key.
        starts: `[S + 1]`: where each sequence begins, and T.
        scale: Factor of the scores.
        reach: A token sees those at most so far before and after it; None sees all.
        bias: `[num_heads, 2 M - 1]`, by distance: key - query + M - 1.
    """
    out = torch.empty_like(query)
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        q, k, v = (x[begin:end] for x in (query, key, value))
        distance = torch.arange(end - begin) - torch.arange(end - begin).unsqueeze(-1)
        scores = torch.einsum("qhd,lhd->hql", q, k) * scale
        if bias is not None:
            scores = scores + bias[:, distance + bias.shape[1] // 2]
        if reach is not None:
            scores = scores.masked_fill(distance.abs() > reach, -torch.inf)
        out[begin:end] = torch.einsum("hql,lhd->qhd", torch.softmax(scores, dim=-1), v)
    return out


def activate(x: Tensor, activation: str) -> Tensor:
    """`silu`, `gelu` (by erf), `gelu_tanh` or `relu2`."""
    if activation == "silu":
        return x * torch.sigmoid(x)
    if activation == "relu2":
        return x.relu().square()
    if activation == "gelu":
        return x / 2 * (1 + torch.erf(x / 2**0.5))
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def activate_mul(gate_up: Tensor, activation: str) -> Tensor:
    """`activation(gate) * up`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate, activation) * up


def processed(
    logits: Tensor, prompt: list[int], output: list[int], options: SamplerOptions
) -> Tensor:
    """Return the logits of one row after all that comes before temperature but DRY.

    Repetition is transformers' `RepetitionPenaltyLogitsProcessor`, presence and frequency are
    vLLM's `apply_penalties`, bad words transformers' `NoBadWordsLogitsProcessor`, top-n-sigma is
    llama.cpp's `llama_sampler_top_n_sigma`.

    Args:
        logits: `[V]`.
        prompt: Its ids.
        output: Ids that were drawn so far.
        options: Of the request.
    """
    logits, tokens = logits.clone(), prompt + output
    if options.allowed_token_ids is not None:
        banned = torch.ones(len(logits), dtype=torch.bool)
        banned[list(options.allowed_token_ids)] = False
        logits[banned] = -torch.inf
    logits[list(options.banned_token_ids)] = -torch.inf
    for *others, last in options.bad_words:
        if tokens[len(tokens) - len(others) :] == others:
            logits[last] = -torch.inf
    for token, bias in options.logit_bias:
        logits[token] += bias
    seen, factor = torch.tensor(sorted(set(tokens))), options.repetition_penalty
    logits[seen] = torch.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    counts = torch.bincount(torch.tensor(output, dtype=torch.long), minlength=len(logits))
    logits -= options.frequency_penalty * counts + options.presence_penalty * (counts > 0)
    left = logits[logits > -torch.inf]
    if options.top_n_sigma > 0:
        logits[logits < left.max() - options.top_n_sigma * left.std(correction=0)] = -torch.inf
    return logits


def dry(logits: Tensor, tokens: list[int], text: list[bytes], options: SamplerOptions) -> Tensor:
    """Return the logits of one row after DRY, as llama.cpp's `llama_sampler_dry`.

    Breakers are looked for in the text of the tokens.

    Args:
        logits: `[V]`.
        tokens: Prompt and output.
        text: The bytes of each token of the vocabulary.
        options: Of the request.
    """

    def breaks(ids: list[int]) -> bool:  # in the last token
        whole = b"".join(text[i] for i in ids)
        ends = (len(whole) - len(text[ids[-1]]) + 1, len(whole) + 1)
        found = (whole[:end].endswith(b) for end in range(*ends) for b in breakers)
        return any(found)

    logits, breakers = logits.clone(), options.dry_sequence_breakers
    most = next((n for n in range(len(tokens)) if breaks(tokens[: len(tokens) - n])), len(tokens))
    tokens = tokens[-(options.dry_penalty_last_n or len(tokens)) :]
    longest: dict[int, int] = {}
    for end in range(1, len(tokens)):
        length = 0
        while length < min(end, most) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        longest[tokens[end]] = max(length, longest.get(tokens[end], 0))
    for token, length in longest.items():
        if length >= options.dry_allowed_length and not breaks([token]):
            exponent = length - options.dry_allowed_length
            logits[token] -= options.dry_multiplier * options.dry_base**exponent
    return logits


def score_tokens(
    logits: Tensor, tokens: Tensor, num_candidates: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Score given tokens: log probabilities, ranks, and the likeliest ids with theirs.

    Equal logits share the best rank, and go by id among the candidates.

    Args:
        logits: float32 `[N, vocab_size]`.
        tokens: int32 `[N]`.
        num_candidates: C; a smaller vocabulary gives fewer.
    """
    logprobs = torch.log_softmax(logits.double(), dim=-1).float()
    chosen = logits.gather(1, tokens.long().view(-1, 1))
    ranks = 1 + (logits > chosen).sum(dim=1, dtype=torch.int32)
    ids = logits.sort(dim=1, descending=True, stable=True).indices[:, :num_candidates]
    own = logprobs.gather(1, tokens.long().view(-1, 1)).flatten()
    return own, ranks, ids.int(), logprobs.gather(1, ids)


def probabilities(
    logits: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float = 1.0,
    xtc_threshold: float = 1.0,
) -> Tensor:
    """What `sample` draws from: one row's distribution after temperature and filters.

    Typical-p is transformers' `TypicalLogitsWarper`; XTC, llama.cpp's `llama_sampler_xtc`, applies.
    """
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).to(logits.dtype)
    p = torch.softmax(logits / temperature, dim=-1)
    order = torch.sort(logits, descending=True, stable=True).indices  # equals: lowest id first
    kept = order[: top_k or None]
    if typical_p < 1:
        share = p[kept] / p[kept].sum()
        surprise = -share.log()
        distance = (surprise - (share * surprise).nansum()).abs()
        near = distance.argsort()
        enough = share[near].cumsum(0) >= typical_p
        kept = kept[distance <= distance[near][enough][0]]
    share = p[kept].cumsum(0) / p[kept].sum()
    kept = kept[: int((share < top_p).sum()) + 1] if top_p < 1 else kept
    kept = kept[p[kept] >= min_p * p[kept].max()]
    is_top = p[kept] >= xtc_threshold * p[kept].sum()
    kept = kept[max(int(is_top.sum()) - 1, 0) :]
    filtered = torch.zeros_like(p)
    filtered[kept] = p[kept]
    return filtered / filtered.sum()
