"""Draws the fields of RoPE in a config.json: a part of `random_configs`."""

from random import Random
from typing import Any

Values = dict[str, Any]

FULL, SLIDING = "full_attention", "sliding_attention"
PARTIAL = {"phi3", "bamba", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "gemma4_text"}
"""The model types that rotate a part of a head."""
BY_KIND = {"gemma3_text", "gemma4_text", "olmo3"}
"""The model types whose layers have RoPE by their kind."""
ROPE_NAMES = "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"
THETAS = 10_000.0, 100.0, 500_000
SHARES = 0.5, 1.0, 0.25
TYPES = "default", "default", "linear", "llama3", "yarn", "proportional"
OWN_TYPES = {
    "ministral3": ("default", "yarn", "yarn"),
    "phi3": ("default", "longrope", "su", "yarn"),
}
YARN: dict[str, tuple[Any, ...]] = {
    "beta_fast": (4.0, 32, None),
    "beta_slow": (1.0, 2, None),
    "truncate": (True, False),
    "mscale": (1.0, 0.7),
    "mscale_all_dim": (1.0, 0.5, 0),
    "attention_factor": (1.2, None),
}


def draw_rope(random: Random, kind: str, values: Values) -> Values:
    """Draw one object, one for each kind of layer, or the fields of old files.

    Args:
        random: Source of chance.
        kind: The model type.
        values: The other fields.
    """
    drawn: Values = {}
    if random.random() < 0.35:
        drawn["rope_theta"] = random.choice(THETAS)
        if kind == "olmo3" and random.random() < 0.8:
            drawn["rope_theta"] = 500_000
    if random.random() < (0.4 if kind in PARTIAL else 0.08):
        drawn["partial_rotary_factor"] = random.choice(SHARES)
        if kind == "bamba" and random.random() < 0.8:
            drawn["partial_rotary_factor"] = 0.5
    if kind in BY_KIND and random.random() < 0.3:
        drawn["rope_local_base_freq"] = random.choice(THETAS)
    form = random.choice(("absent", "null", "new", "new", "old", "both"))
    if kind in BY_KIND and random.random() < (0.7 if kind == "gemma4_text" else 0.5):
        drawn["rope_parameters"] = _by_kind(random, kind, values)
        form = random.choice(("absent", "absent", "old"))
    elif kind in BY_KIND and random.random() < 0.6:
        form = random.choice(("absent", "old"))
    if kind in ("gemma4_text", "nemotron_h") and random.random() < 0.98:
        # The classes of both read no form of old files.
        form = "absent"
    return drawn | _in_form(random, form, kind, values)


def _in_form(random: Random, form: str, kind: str, values: Values) -> Values:
    drawn: Values = {}
    if form in ("new", "both"):
        drawn["rope_parameters"] = _object(random, kind, values)
    if form in ("old", "both"):
        drawn["rope_scaling"] = _object(random, kind, values)
        if random.random() < 0.5:
            drawn["rope_scaling"]["type"] = drawn["rope_scaling"].pop("rope_type")
            if random.random() < 0.2:
                drawn["rope_scaling"]["rope_type"] = drawn["rope_scaling"]["type"]
    if form == "null":
        drawn[random.choice(("rope_scaling", "rope_parameters"))] = None
    return drawn


def _by_kind(random: Random, kind: str, values: Values) -> Values:
    kinds = random.choice((*3 * ((FULL, SLIDING),), (FULL,), (SLIDING,)))
    if kind == "gemma4_text":
        kinds = FULL, SLIDING
    drawn = {own: _object(random, kind, values) for own in kinds}
    if kind == "gemma4_text":
        if random.random() < 0.9:
            drawn[SLIDING] = {"rope_type": "default", "rope_theta": random.choice(THETAS)}
    elif random.random() < 0.1:
        drawn[kinds[0]] = None
    return drawn


def _object(random: Random, kind: str, values: Values) -> Values:
    own_type = random.choice(OWN_TYPES.get(kind, TYPES))
    if kind != "phi3" and random.random() < 0.03:
        own_type = "longrope"
    drawn: Values = {"rope_type": own_type}
    # Gemma 4 has no default for the fields of an object.
    is_whole = kind == "gemma4_text"
    if random.random() < (0.97 if is_whole else 0.6):
        drawn["rope_theta"] = random.choice(THETAS)
    if random.random() < (0.4 if kind in PARTIAL else 0.06):
        drawn["partial_rotary_factor"] = random.choice(SHARES)
    if own_type != "default":
        drawn["factor"] = random.choice((4.0, 2))
    if own_type in ("llama3", "yarn", "longrope", "su") and (is_whole or random.random() < 0.8):
        drawn["original_max_position_embeddings"] = random.choice((32, 16))
    if kind == "ministral3":
        drawn |= {"llama_4_scaling_beta": random.choice((0.3, 0.1))}
        drawn["original_max_position_embeddings"] = 32
    if own_type == "llama3":
        drawn |= {"low_freq_factor": 1.0, "high_freq_factor": random.choice((4.0, 2))}
    elif own_type in ("longrope", "su") or (own_type == "yarn" and kind == "phi3"):
        return _with_divisors(random, drawn, values)
    elif own_type == "yarn":
        given = [name for name in YARN if random.random() < 0.3]
        drawn |= {name: random.choice(YARN[name]) for name in given}
    return drawn


def _with_divisors(random: Random, drawn: Values, values: Values) -> Values:
    """Return LongRoPE with divisors for each rotated pair of a head."""
    head_dim = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    places = range(int(head_dim * drawn.get("partial_rotary_factor", 1.0)) // 2)
    drawn["short_factor"] = [1.0 + 0.1 * place for place in places]
    drawn["long_factor"] = [2.0 + 0.5 * place for place in places]
    if random.random() < 0.5:
        del drawn["factor"]
    return drawn
