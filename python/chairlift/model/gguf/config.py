"""The configuration of a model from the metadata of a GGUF file, in the fields of config.json.

Source of the keys: `gguf-py/gguf/constants.py` of llama.cpp; of what each stands for,
`convert_hf_to_gguf.py`.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from chairlift.errors import ModelError
from chairlift.model.fields import Fields, either
from chairlift.model.gguf.end_tokens import end_token_ids
from chairlift.model.gguf.reader import GgufHeader
from chairlift.model.names import CheckpointNames

ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
}
"""The family of each `general.architecture`; Mistral and Mixtral call themselves llama."""

NAMES: Final = CheckpointNames(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layers="blk",
    attention_norm="attn_norm",
    query="attn_q",
    key="attn_k",
    value="attn_v",
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    output="attn_output",
    feed_forward_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    attention_norm_after="post_attention_norm",
    feed_forward_norm_after="post_ffw_norm",
    router="ffn_gate_inp",
    expert_gate="ffn_gate_exps.{}",
    expert_up="ffn_up_exps.{}",
    expert_down="ffn_down_exps.{}",
    sinks="attn_sinks.weight",
)
NAMES_OF: Final = {"GptOssForCausalLM": replace(NAMES, feed_forward_norm="post_attention_norm")}
"""By the family, where they are not `NAMES`."""

_KEYS: Final = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
"""Where the fields of config.json come from, without the architecture."""

DIVISORS: Final = "rope_freqs.weight"
"""What each frequency of RoPE is divided by, `[head_dim / 2]`: the scaling of Llama 3.1."""

_OF_LAYER: Final = re.compile(
    rf"{NAMES.layers}\.[0-9]+\.({NAMES.query}|{NAMES.key})\.(?:weight|bias)"
)
"""Queries and keys, whose rows llama.cpp has in another order."""
_IN_PAIRS: Final = frozenset(("granite", "granitemoe", "llama"))
"""Architectures whose rows of queries and keys lie in the order of llama.cpp."""
_WITH_WINDOWS: Final = frozenset(("gemma2", "gemma3", "gpt-oss"))
"""Architectures whose family says which layers have a window."""
_MULTIPLIERS: Final = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
"""Of Granite."""
_WITH_MULTIPLIERS: Final = frozenset(("granite", "granitemoe"))
_WITH_EXPERTS: Final = frozenset(("gpt-oss", "granitemoe", "qwen3moe"))
"""Architectures that always have experts; those of llama may, as Mixtral."""
_EXPERT_SIZES: Final = {"qwen3moe": "moe_intermediate_size", "gpt-oss": "intermediate_size"}
"""The field of the width of an expert, by architecture; of others it is that of all layers."""
_CAPS: Final = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Of Gemma 2."""
_LARGEST_GEMMAS: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries are scaled by the width of the model."""
_SOFTMAX: Final = 1
"""What weighs the experts, of `expert_gating_func`."""
_WITH_YARN: Final = frozenset(("gpt-oss",))
_ROPE_FACTORS: Final = ("scaling.factor", "scale_linear")
_UNSUPPORTED: Final = (
    "expert_group_count",
    "expert_shared_count",
    "leading_dense_block_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
)
"""Values that would change what the layers compute."""


def open_gguf(path: Path, files: ExitStack) -> GgufHeader:
    """Open a GGUF model whose rows of queries and keys are in the order of `transformers`.

    Raises:
        ModelError: A file is missing, truncated or corrupt.
    """
    header = GgufHeader.open(path, files)
    fields = Fields(path, header.metadata)
    kind = fields.values.get("general.architecture")
    if not isinstance(kind, str) or kind not in _IN_PAIRS:
        return header
    own = _Metadata(header, kind)
    num_heads, num_kv_heads = own.num_heads()
    of_part = {NAMES.query: num_heads, NAMES.key: num_kv_heads}
    # By the tensors that there are: the number of layers is what the file says.
    found = {name: _OF_LAYER.fullmatch(name) for name in header.tensors}
    heads = {name: of_part[match[1]] for name, match in found.items() if match}
    for name, number in heads.items():
        if header.tensors[name].shape[0] % (2 * number):
            fields.fail(f"{kind}.attention.head_count", f"heads of an even size in {name}")
    return header.with_heads(heads)


def read_config(header: GgufHeader) -> tuple[str, Fields]:
    """Return the architecture and the fields of config.json that the metadata stands for.

    Raises:
        ModelError: A value is missing, of a wrong type, or asks for something unsupported.
    """
    metadata = Fields(header.path, header.metadata)
    kind = metadata.values.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        metadata.fail("general.architecture", either(ARCHITECTURES))
    own = _Metadata(header, kind)
    own.refuse_unsupported()
    window = own.window()
    num_heads, num_kv_heads = own.num_heads()
    first = f"{NAMES.layers}.0."
    values = {
        "vocab_size": _vocab_size(header, metadata),
        "hidden_size": metadata.integer(f"{kind}.embedding_length"),
        "num_hidden_layers": metadata.integer(f"{kind}.block_count"),
        "intermediate_size": own.per_layer("feed_forward_length"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": own.head_dim(num_heads),
        "rms_norm_eps": metadata.number(f"{kind}.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.integer(f"{kind}.context_length"),
        "rope_parameters": own.rope(),
        "tie_word_embeddings": f"{NAMES.head}.weight" not in header.tensors,
        "attention_bias": f"{first}{NAMES.query}.bias" in header.tensors,
        "mlp_bias": f"{first}{NAMES.down}.bias" in header.tensors,
        "sliding_window": window,
        "eos_token_id": list(end_token_ids(metadata)),
        "bos_token_id": metadata.optional_integer("tokenizer.ggml.bos_token_id", least=0),
    }
    values |= own.of_architecture() | own.experts()
    architecture = ARCHITECTURES[kind]
    if kind == "llama" and own.has_experts():
        architecture = "MixtralForCausalLM"
    elif kind == "llama" and window is not None:
        architecture = "MistralForCausalLM"
    keys = {name: f"{kind}.{key}" for name, key in _KEYS.items()}
    return architecture, Fields(header.path, values, keys=keys)


def read_divisors(header: GgufHeader, head_dim: int) -> tuple[float, ...] | None:
    """Read what each frequency of RoPE is divided by; None where the file does not say.

    Raises:
        ModelError: There is not one divisor above 0 for each frequency.
    """
    stored = header.tensors.get(DIVISORS)
    if stored is None:
        return None
    if stored.shape != (head_dim // 2,):
        message = f"{stored.path}: {DIVISORS}: expected {head_dim // 2}, got {list(stored.shape)}"
        raise ModelError(message)
    divisors = torch.empty(stored.shape)
    stored.read(divisors)
    if not (divisors > 0).all() or not divisors.isfinite().all():
        message = f"{stored.path}: {DIVISORS}: expected numbers above 0"
        raise ModelError(message)
    return tuple(divisors.tolist())


def _vocab_size(header: GgufHeader, metadata: Fields) -> int:
    embedding = header.tensors.get(f"{NAMES.embedding}.weight")
    if embedding is not None:
        return embedding.shape[0]
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else 0


class _Metadata:
    """The values of one architecture."""

    def __init__(self, header: GgufHeader, kind: str) -> None:
        self.header = header
        self.fields = Fields(header.path, header.metadata)
        self.kind = kind

    def refuse_unsupported(self) -> None:
        """Refuse values that would change what the layers compute."""
        fields, kind = self.fields, self.kind
        if self.has_experts() and kind not in (*_WITH_EXPERTS, "llama"):
            fields.fail(f"{kind}.expert_count", "0: its experts are not supported")
        known = _CAPS if kind == "gemma2" else _MULTIPLIERS if kind in _WITH_MULTIPLIERS else {}
        for name in _UNSUPPORTED:
            if name not in known and fields.optional_number(f"{kind}.{name}") not in {None, 0.0}:
                fields.fail(f"{kind}.{name}", "nothing: it is not supported")
        key = f"{kind}.rope.scaling.attn_factor"
        if fields.optional_number(key) not in {None, 0.0, 1.0}:
            fields.fail(key, "1: it is not supported")
        key = f"{kind}.attention.causal"
        if key in fields.values and not fields.flag(key):
            fields.fail(key, "true")

    def has_experts(self) -> bool:
        """Return whether the feed-forward is a mixture of experts."""
        key = f"{self.kind}.expert_count"
        if self.kind in _WITH_EXPERTS:
            return self.fields.integer(key) > 0
        return bool(self.fields.optional_integer(key, least=0))

    def experts(self) -> dict[str, Any]:
        """Read the sizes of a mixture of experts; nothing where there is none."""
        fields, at = self.fields, f"{self.kind}."
        if not self.has_experts():
            return {}
        key = f"{at}expert_gating_func"
        if fields.optional_integer(key, least=0) not in {None, 0, _SOFTMAX}:
            fields.fail(key, f"{_SOFTMAX}, softmax")
        if fields.optional_number(f"{at}expert_weights_scale") not in {None, 0.0, 1.0}:
            fields.fail(f"{at}expert_weights_scale", "1")
        # The architecture says whether weights are normed, as in llama.cpp.
        fields.flag(f"{at}expert_weights_norm")
        num = fields.integer(f"{at}expert_count")
        values: dict[str, Any] = {
            "num_experts": num,
            "num_local_experts": num,
            "num_experts_per_tok": fields.integer(f"{at}expert_used_count"),
            "norm_topk_prob": True,
        }
        if (name := _EXPERT_SIZES.get(self.kind)) is not None:
            values[name] = fields.integer(f"{at}expert_feed_forward_length")
        return values

    def window(self) -> int | None:
        """Read the tokens that a layer sees; None sees all.

        Of some the family says which layers have it; for Qwen no key does.
        """
        key = f"{self.kind}.attention.sliding_window"
        window = self.fields.optional_integer(key, least=0)
        longest = self.fields.integer(f"{self.kind}.context_length")
        if self.kind in _WITH_WINDOWS:
            return window or None
        if not window or (window >= longest and self.kind != "llama"):
            return None
        if self.kind != "llama":
            self.fields.fail(key, f"0, or at least context_length, {longest}")
        return window

    def of_architecture(self) -> dict[str, Any]:
        """Read the fields that only one architecture has."""
        fields, kind = self.fields, self.kind
        if kind in _WITH_MULTIPLIERS:
            found = {
                name: fields.optional_number(f"{kind}.{key}") for key, name in _MULTIPLIERS.items()
            }
            return {name: value for name, value in found.items() if value}
        if kind not in _LARGEST_GEMMAS:
            return {}
        num_heads, _ = self.num_heads()
        size = self.head_dim(num_heads)
        hidden = fields.integer(f"{kind}.embedding_length")
        if fields.integer(f"{kind}.block_count") == _LARGEST_GEMMAS[kind]:
            size = None
        values: dict[str, Any] = {
            "norms_are_whole": True,
            "query_pre_attn_scalar": size or hidden // num_heads,
        }
        if kind == "gemma2":
            return values | {
                name: fields.optional_number(f"{kind}.{key}") for key, name in _CAPS.items()
            }
        # The window's layers keep the base and the positions of the first Gemma 3.
        base = fields.number(f"{kind}.rope.freq_base_swa", default=10_000.0, positive=True)
        local = {"rope_theta": base, "rope_type": "default"}
        ropes = {"full_attention": self.rope(), "sliding_attention": local}
        return values | {"rope_parameters": ropes}

    def num_heads(self) -> tuple[int, int]:
        """Read the heads of queries, and those of keys and values."""
        num_heads, key = self.per_layer("attention.head_count"), "attention.head_count_kv"
        is_given = f"{self.kind}.{key}" in self.fields.values
        return num_heads, self.per_layer(key) if is_given else num_heads

    def per_layer(self, name: str) -> int:
        """Read an integer that may be given for each layer, and must be the same for all."""
        key = f"{self.kind}.{name}"
        values = self.fields.values.get(key)
        if isinstance(values, np.ndarray) and values.size:
            num_layers = self.fields.integer(f"{self.kind}.block_count")
            is_one = len(values) == num_layers and not (values != values[0]).any()
            if values.dtype.kind not in "iu" or not is_one:
                self.fields.fail(key, "one number for all layers")
            return Fields(self.header.path, {key: values[0].item()}).integer(key)
        return self.fields.integer(key)

    def head_dim(self, num_heads: int) -> int | None:
        """Read the numbers of a head; None where they follow from the width."""
        head_dim = self.fields.optional_integer(f"{self.kind}.attention.key_length")
        hidden = self.fields.integer(f"{self.kind}.embedding_length")
        expected = head_dim or hidden // num_heads
        for name in ("attention.value_length", "rope.dimension_count"):
            if self.fields.optional_integer(f"{self.kind}.{name}") not in {expected, None}:
                self.fields.fail(f"{self.kind}.{name}", f"all numbers of a head, {expected}")
        return head_dim

    def rope(self) -> Mapping[str, Any]:
        """Read the position embedding."""
        fields, at = self.fields, f"{self.kind}.rope."
        theta = fields.number(f"{at}freq_base", default=10_000.0, positive=True)
        kinds = {"none": 0, "linear": 0}
        if self.kind in _WITH_YARN:
            kinds["yarn"] = 0
        kind = fields.choice(f"{at}scaling.type", kinds, default="linear")
        # The second is the name of old files; 0 and 1 change nothing.
        factors = [fields.optional_number(f"{at}{key}") for key in _ROPE_FACTORS]
        factor = next((factor for factor in factors if factor is not None), 0.0)
        if kind == "yarn":
            return {"rope_theta": theta, **self.yarn(factor)}
        if kind == "linear" and factor not in {0.0, 1.0}:
            if DIVISORS in self.header.tensors:
                fields.fail(f"{at}{_ROPE_FACTORS[0]}", f"1, as there is {DIVISORS}")
            return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
        return {"rope_theta": theta, "rope_type": "default"}

    def yarn(self, factor: float) -> Mapping[str, Any]:
        """Read YaRN, whose ramp is not rounded to whole frequencies here."""
        fields, at = self.fields, f"{self.kind}.rope.scaling."
        for name in ("yarn_ext_factor", "yarn_attn_factor"):
            if fields.optional_number(f"{at}{name}") not in {None, 1.0}:
                fields.fail(f"{at}{name}", "1: it is not supported")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": fields.integer(f"{at}original_context_length"),
            "beta_fast": fields.number(f"{at}yarn_beta_fast", default=32.0),
            "beta_slow": fields.number(f"{at}yarn_beta_slow", default=1.0),
            "truncate": False,
        }
