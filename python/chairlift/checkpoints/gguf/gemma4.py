"""The fields of config.json of Gemma 4, some of whose layers have sizes of their own."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import torch

from chairlift.api.errors import ModelError
from chairlift.checkpoints.gguf.metadata import DIVISORS, Metadata
from chairlift.checkpoints.gguf.names import NAMES, VALUE

_FULL, _SLIDING = "full_attention", "sliding_attention"
_INFINITE: Final = 1e29
"""A divisor as large stops a rotation."""


def gemma4_fields(metadata: Metadata) -> Mapping[str, Any]:
    """Read the fields that Gemma 4 has beside those of all."""
    pattern = metadata.each_layer("attention.sliding_window_pattern")
    kinds = [_SLIDING if each else _FULL for each in pattern]
    size = metadata.integer("attention.key_length_swa")
    for name in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if (metadata.optional_integer(name) or size) != size:
            metadata.fail(name, f"all numbers of a head, {size}")
    heads = metadata.each_layer("attention.head_count_kv")
    num_shared = metadata.optional_integer("attention.shared_kv_layers")
    widths = metadata.each_layer("feed_forward_length")
    first = len(kinds) - num_shared
    is_double = num_shared > 0 and widths[-1] == 2 * widths[0]
    _check(
        metadata, "feed_forward_length", widths, [range(first), range(max(first, 0), len(kinds))]
    )
    of_kind = [[n for n, kind in enumerate(kinds) if kind == wanted] for wanted in _KINDS]
    _check(metadata, "attention.head_count_kv", heads, of_kind)
    of_sliding = [heads[number] for number in of_kind[0]] or heads
    of_full = [heads[number] for number in of_kind[1]] or heads
    return {
        "layer_types": kinds,
        "head_dim": size,
        "global_head_dim": metadata.integer("attention.key_length"),
        "num_key_value_heads": of_sliding[0],
        "num_global_key_value_heads": of_full[0],
        "attention_k_eq_v": _keys_are_values(metadata, kinds[: max(first, 0)]),
        "num_kv_shared_layers": num_shared,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": is_double,
        "hidden_size_per_layer_input": metadata.optional_integer(
            "embedding_length_per_layer_input"
        ),
        "vocab_size_per_layer_input": _num_rows(metadata, "per_layer_token_embd.weight"),
        "final_logit_softcapping": metadata.fields.optional_number("gemma4.final_logit_softcapping")
        or None,
        "rope_parameters": _ropes(metadata),
        "enable_moe_block": metadata.optional_integer("expert_count") > 0,
        "top_k_experts": metadata.optional_integer("expert_used_count"),
    }


_KINDS: Final = _SLIDING, _FULL


def _check(
    metadata: Metadata, name: str, values: Sequence[int], groups: Sequence[Sequence[int]]
) -> None:
    """Refuse values that differ between layers of a group."""
    for group in groups:
        if len({values[number] for number in group}) > 1:
            metadata.fail(name, "one number for the layers of a kind")


def _keys_are_values(metadata: Metadata, kinds: Sequence[str]) -> bool:
    """Return whether layers that see all tokens have no projection of values."""
    tensors = metadata.header.tensors
    has_values = [
        f"{NAMES.layers}.{number}.{VALUE}.weight" in tensors
        for number, kind in enumerate(kinds)
        if kind == _FULL
    ]
    return bool(has_values) and not any(has_values)


def _num_rows(metadata: Metadata, name: str) -> int:
    stored = metadata.header.tensors.get(name)
    return 0 if stored is None else stored.shape[0]


def _ropes(metadata: Metadata) -> Mapping[str, Any]:
    """Read both position embeddings: where all tokens are seen, the last pairs do not rotate."""
    full, size = metadata.rope(), metadata.integer("attention.key_length")
    base = metadata.fields.number("gemma4.rope.freq_base_swa", default=10_000.0, positive=True)
    stored = metadata.header.tensors.get(DIVISORS)
    num_pairs = size // 2
    if stored is not None:
        if stored.shape != (size // 2,):
            _fail(metadata, f"{size // 2}, got {list(stored.shape)}")
        divisors = torch.empty(stored.shape)
        stored.read(divisors)
        num_pairs = int((divisors == 1).sum())
        if not (divisors[:num_pairs] == 1).all() or not (divisors[num_pairs:] > _INFINITE).all():
            _fail(metadata, "1 for the first pairs, 1e30 for the others")
    proportional = {
        "rope_type": "proportional",
        "rope_theta": full["rope_theta"],
        # Half a number more, so that rounding down gives the same pairs again.
        "partial_rotary_factor": min(1.0, (2 * num_pairs + 0.5) / size),
    }
    return {_FULL: proportional, _SLIDING: {"rope_type": "default", "rope_theta": base}}


def _fail(metadata: Metadata, expected: str) -> NoReturn:
    message = f"{metadata.header.path}: {DIVISORS}: expected {expected}"
    raise ModelError(message)
