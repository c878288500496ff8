"""The position embedding of a layer, from config.json."""

import math
from collections.abc import Sequence
from typing import Any

from chairlift.checkpoints.files.fields import Fields, either
from chairlift.model.specs.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    PositionScale,
    ProportionalScaling,
    Rope,
    Scaling,
    YarnScaling,
)

_TYPES = {"default": 0, "linear": 0, "llama3": 0, "yarn": 0, "longrope": 0, "proportional": 0}
_WITH_ORIGINAL_LENGTH = frozenset(("llama3", "yarn", "longrope"))
_ORIGINAL_LENGTH = "original_max_position_embeddings"


def rope(
    fields: Fields,
    head_dim: int,
    *,
    kind: str | None = None,
    theta: float | None = None,
    partial: bool = False,
) -> Rope:
    """Read the position embedding of a layer.

    Args:
        fields: Fields of config.json.
        head_dim: Numbers of a head.
        kind: Kind of the layer, where kinds have different position embeddings.
        theta: The base where the fields of that kind name none; None takes `rope_theta`.
        partial: The model rotates the part of a head that `partial_rotary_factor` says.
    """
    if kind is None:
        values = _rope_fields(fields)
    else:
        values = _fields_of_kind(fields, kind, theta)
        # What is beside the objects of the kinds does not count.
        fields = Fields(fields.path, {**fields.values, _ORIGINAL_LENGTH: None})
    share = values.number("partial_rotary_factor", default=1.0, positive=True)
    if values.values["rope_type"] == "proportional":
        return _proportional(values, head_dim, share)
    rotary_dim = int(head_dim * share)
    if share != 1.0 and not partial:
        # `transformers` ignores it, or fails.
        values.fail("partial_rotary_factor", "1 for this architecture, or a proportional rope_type")
    if share != 1.0 and (share > 1.0 or rotary_dim < 2 or rotary_dim % 2):
        values.fail("partial_rotary_factor", f"an even share of {head_dim}")
    return Rope(
        values.number("rope_theta", positive=True),
        _scaling(fields, values, rotary_dim),
        rotary_dim if rotary_dim < head_dim else None,
    )


def _proportional(values: Fields, head_dim: int, share: float) -> Rope:
    num_pairs = int(share * head_dim // 2)
    if share > 1.0 or num_pairs < 1:
        values.fail("partial_rotary_factor", f"a share of {head_dim} with a pair")
    factor = values.optional_number("factor", positive=True) or 1.0
    return Rope(values.number("rope_theta", positive=True), ProportionalScaling(num_pairs, factor))


def position_scale(fields: Fields) -> PositionScale | None:
    """Read what queries are multiplied by (`llama_4_scaling_beta`), which is part of RoPE."""
    values = _rope_fields(fields)
    beta = values.optional_number("llama_4_scaling_beta")
    if not beta:
        return None
    if values.values["rope_type"] in _WITH_ORIGINAL_LENGTH:
        return PositionScale(beta, _original_length(fields, values))
    return PositionScale(beta, values.integer("original_max_position_embeddings"))


def _object(fields: Fields, name: str) -> dict[str, Any]:
    """Read an object; null is an empty one."""
    values = fields.values.get(name)
    if values is not None and not isinstance(values, dict):
        fields.fail(name, "an object")
    return values or {}


def _rope_fields(fields: Fields) -> Fields:
    """Collect the fields of RoPE: one object in new files, spread over several keys in old ones."""
    name = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    values = _object(fields, name)
    if any(isinstance(value, dict) for value in values.values()):
        fields.fail(name, "an object that holds for all layers")
    theta = fields.values.get("rope_theta")
    return _with_outer(fields, values, name, 10_000.0 if theta is None else theta)


def _fields_of_kind(fields: Fields, kind: str, theta: float | None) -> Fields:
    """Collect the fields of RoPE of a kind of layer.

    An object for each kind is in `rope_parameters`; `rope_scaling` of old files changes that of the
    layers that see all tokens.
    """
    name = "rope_parameters"
    given, scaling = _object(fields, name), _object(fields, "rope_scaling")
    if any(value is not None and not isinstance(value, dict) for value in given.values()):
        fields.fail(name, "an object for each kind of layer, full_attention and sliding_attention")
    values = given.get(kind)
    if kind == "full_attention" and scaling:
        if given and values is None:
            fields.fail("rope_scaling", "nothing beside rope_parameters")
        values = {"rope_type": "default", **(values or {}), **scaling}
        if scaling.get("type") not in (None, values["rope_type"]):
            Fields(fields.path, scaling, "rope_scaling.").fail("type", "rope_type in its place")
    if (values or {}).get("truncate") is False:
        # `transformers` does not read it there.
        fields.fail(name, "no truncate of false in the object of a kind of layer")
    return _with_outer(fields, values or {}, f"{name}.{kind}", theta)


def _with_outer(fields: Fields, values: dict[str, Any], name: str, theta: float | None) -> Fields:
    """Return fields of an object, with those beside it that it leaves out."""
    outer = {
        "rope_theta": theta,
        "rope_type": values.get("type") or "default",
        "partial_rotary_factor": fields.values.get("partial_rotary_factor"),
    }
    inner = {key: value for key, value in values.items() if value is not None}
    return Fields(fields.path, {**outer, **inner}, prefix=f"{name}.")


def _scaling(fields: Fields, values: Fields, rotary_dim: int) -> Scaling | None:
    match values.values["rope_type"]:
        case "default":
            return None
        case "linear":
            return LinearScaling(values.number("factor", positive=True))
        case "llama3":
            return _llama3_scaling(fields, values)
        case "yarn":
            return _yarn_scaling(fields, values)
        case "longrope":
            return _long_rope_scaling(fields, values, rotary_dim)
        case _:
            values.fail("rope_type", either(_TYPES))


def _original_length(fields: Fields, values: Fields) -> int:
    """Read the length before scaling: one beside the object of RoPE counts before the one in it."""
    beside, inside = (part.optional_integer(_ORIGINAL_LENGTH) for part in (fields, values))
    return beside or inside or fields.integer("max_position_embeddings")


def _llama3_scaling(fields: Fields, values: Fields) -> Llama3Scaling:
    low = values.number("low_freq_factor", positive=True)
    high = values.number("high_freq_factor", positive=True)
    if high <= low:
        values.fail("high_freq_factor", f"a number above low_freq_factor, {low:g}")
    return Llama3Scaling(
        factor=values.number("factor", positive=True),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=_original_length(fields, values),
    )


def _yarn_scaling(fields: Fields, values: Fields) -> YarnScaling:
    factor = values.number("factor", positive=True)
    attention_factor = values.optional_number("attention_factor", positive=True)
    if attention_factor is None:
        attention_factor = _yarn_attention_factor(factor, values)
    truncate = values.flag("truncate") if "truncate" in values.values else True
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=_original_length(fields, values),
        attention_factor=attention_factor,
        beta_fast=values.number("beta_fast", default=32.0) or 32.0,
        beta_slow=values.number("beta_slow", default=1.0) or 1.0,
        truncate=truncate,
    )


def _yarn_attention_factor(factor: float, values: Fields) -> float:
    def grown(share: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0

    mscale = values.number("mscale", default=0.0)
    of_all = values.number("mscale_all_dim", default=0.0)
    return grown(mscale) / grown(of_all) if mscale and of_all else grown(1.0)


def _long_rope_scaling(fields: Fields, values: Fields, rotary_dim: int) -> LongRopeScaling:
    length = _original_length(fields, values)
    longest = fields.integer("max_position_embeddings")
    factor = values.optional_number("factor", positive=True) or longest / length
    attention_factor = values.optional_number("attention_factor", positive=True)
    if attention_factor is None:
        is_longer = factor > 1.0 and length > 1
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(length)) if is_longer else 1.0
    return LongRopeScaling(
        short=_divisors(values, "short_factor", rotary_dim // 2),
        long=_divisors(values, "long_factor", rotary_dim // 2),
        original_max_position_embeddings=length,
        attention_factor=attention_factor,
    )


def _divisors(values: Fields, name: str, count: int) -> tuple[float, ...]:
    numbers = values.values.get(name)
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or len(numbers) != count:
        values.fail(name, f"a list of {count} numbers")
    each = (Fields(values.path, {name: number}, values.prefix) for number in numbers)
    return tuple(field.number(name, positive=True) for field in each)
