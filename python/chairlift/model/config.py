"""What a model is, read from its folder: `config.json` and `generation_config.json`.

A model family is a line of data in `ARCHITECTURES`. Whatever would change the result and is not
understood is an error: a model either computes what `transformers` computes or does not load.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from chairlift.choices import Dtype
from chairlift.errors import ModelError
from chairlift.kernels import cpu
from chairlift.model.fields import Fields, either, optional_json, read_json


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """RoPE with every position divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """RoPE of Llama 3.1: slow frequencies are divided by `factor`, fast ones stay."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


RopeScaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling that the model's authors recommend; None where they say nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model; every field resolved, none changed after."""

    architecture: str
    """Name in `ARCHITECTURES`."""
    dtype: torch.dtype
    """Of weights, activations and KV cache: float32, bfloat16 or float16."""
    vocab_size: int
    """Rows of the embedding table and width of the logits."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    """Longest prompt plus answer, in tokens."""
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMS norm of each head's query and key before RoPE."""
    kv_windows: tuple[int | None, ...]
    """Sliding window in tokens of each KV group, or None: the group sees everything."""
    layer_group: tuple[int, ...]
    """KV group of each layer."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    generation: GenerationDefaults

    @classmethod
    def load(cls, folder: Path, dtype: Dtype = Dtype.AUTO) -> "ModelConfig":
        """Reads a model folder.

        Args:
            folder: Holds `config.json` and perhaps `generation_config.json`.
            dtype: What to compute in; auto is the checkpoint's, bfloat16 for a float16 one.

        Raises:
            ModelError: A file is missing or malformed, or asks for something unsupported.
        """
        name, architecture, fields = _read_architecture(folder / "config.json")
        _refuse_unsupported(fields)
        rope = _rope_fields(fields)
        generation = _generation_fields(folder / "generation_config.json")
        num_heads, num_kv_heads, head_dim = _head_sizes(fields)
        max_model_len = fields.integer("max_position_embeddings")
        kv_windows, layer_group = _kv_groups(architecture.windows(fields), max_model_len)
        bias = "attention_bias" in architecture.bias_flags and fields.flag("attention_bias")
        config = cls(
            architecture=name,
            dtype=_compute_dtype(fields, dtype),
            vocab_size=fields.integer("vocab_size"),
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=len(layer_group),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_model_len=max_model_len,
            rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
            rope_theta=rope.number("rope_theta", positive=True),
            rope_scaling=_rope_scaling(rope, max_model_len),
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            qkv_bias=architecture.qkv_bias or bias,
            o_bias=bias,
            mlp_bias="mlp_bias" in architecture.bias_flags and fields.flag("mlp_bias"),
            qk_norm=architecture.qk_norm,
            kv_windows=kv_windows,
            layer_group=layer_group,
            eos_token_ids=generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id"),
            bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
            generation=GenerationDefaults(
                temperature=generation.optional_number("temperature"),
                top_k=generation.optional_integer("top_k", least=0),
                top_p=generation.optional_number("top_p", positive=True, most=1.0),
                min_p=generation.optional_number("min_p", most=1.0),
            ),
        )
        # A shape that a GPU runs is one that a CPU runs.
        if (obstacle := cpu.LIMITS.obstacle(config)) is not None:
            message = f"{fields.path}: {obstacle}"
            raise ModelError(message)
        return config


# --- the families ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a family differs from plain Llama."""

    windows: Callable[[Fields], list[int | None]]
    """Gives each layer's sliding window."""
    qkv_bias: bool = False
    """Query, key and value projections always have a bias."""
    bias_flags: tuple[str, ...] = ()
    """Which flags of config.json count: `attention_bias` (q, k, v and o), `mlp_bias`."""
    qk_norm: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What `transformers` takes where config.json leaves a value out."""


def _no_window(fields: Fields) -> list[int | None]:
    return [None] * fields.integer("num_hidden_layers")


def _one_window(fields: Fields) -> list[int | None]:
    if fields.values.get("layer_types") is not None:
        fields.fail("layer_types", "absent for this architecture")
    return [fields.optional_integer("sliding_window")] * fields.integer("num_hidden_layers")


def _window_per_layer(fields: Fields) -> list[int | None]:
    """`layer_types` says which layers have the window, or `max_window_layers` the first of them."""
    num_layers = fields.integer("num_hidden_layers")
    window = (
        fields.optional_integer("sliding_window") if fields.flag("use_sliding_window") else None
    )
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", least=0)
        return [window if layer >= first else None for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.fail("layer_types", f"a list of {num_layers} names")
    by_kind = {"full_attention": None, "sliding_attention": window}
    if any(not isinstance(kind, str) or kind not in by_kind for kind in kinds):
        fields.fail("layer_types", f"a list of {either(by_kind)} alone")
    if window is None and "sliding_attention" in kinds:
        fields.fail("layer_types", "full_attention alone, since no sliding_window is in use")
    return [by_kind[kind] for kind in kinds]


_QWEN_DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}

ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(_no_window, bias_flags=("attention_bias", "mlp_bias")),
    "MistralForCausalLM": Architecture(
        _one_window, defaults={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "Qwen2ForCausalLM": Architecture(_window_per_layer, qkv_bias=True, defaults=_QWEN_DEFAULTS),
    "Qwen3ForCausalLM": Architecture(
        _window_per_layer,
        bias_flags=("attention_bias",),
        qk_norm=True,
        defaults={"head_dim": 128, **_QWEN_DEFAULTS},
    ),
}


def _read_architecture(path: Path) -> tuple[str, Architecture, Fields]:
    fields = Fields(path, read_json(path))
    if "auto_map" in fields.values:
        message = f"{path}: auto_map asks for code of the checkpoint to run, which is not supported"
        raise ModelError(message)
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in ARCHITECTURES:
        fields.fail("architectures", either(ARCHITECTURES))
    architecture = ARCHITECTURES[name]
    return name, architecture, Fields(path, {**architecture.defaults, **fields.values})


def _refuse_unsupported(fields: Fields) -> None:
    if fields.values.get("quantization_config") is not None:
        fields.fail("quantization_config", "absent: load the unquantized checkpoint")
    if fields.values.get("hidden_act", "silu") != "silu":
        fields.fail("hidden_act", "silu")


def _head_sizes(fields: Fields) -> tuple[int, int, int]:
    """Gives the number of query heads, of key and value heads, and their size."""
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        fields.fail("num_key_value_heads", f"a divisor of {num_heads}")
    head_dim = fields.optional_integer("head_dim") or fields.integer("hidden_size") // num_heads
    return num_heads, num_kv_heads, head_dim


def _kv_groups(
    windows: list[int | None], max_model_len: int
) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """Gives the window of each KV group, and the group of each layer."""
    # A window that no sequence outgrows is no window: its layers need no group of their own.
    effective = [w if w is not None and w < max_model_len else None for w in windows]
    kv_windows = tuple(dict.fromkeys(effective))
    return kv_windows, tuple(kv_windows.index(window) for window in effective)


def _rope_fields(fields: Fields) -> Fields:
    """Gathers the RoPE settings: one object in new files, spread over several keys in old ones."""
    name = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    values = fields.values.get(name) or {}
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        fields.fail(name, "an object that holds for all layers")
    outer = {
        "rope_theta": fields.values.get("rope_theta") or 10_000.0,
        "rope_type": values.get("type") or "default",
        "partial_rotary_factor": fields.values.get("partial_rotary_factor"),
    }
    inner = {key: value for key, value in values.items() if value is not None}
    return Fields(fields.path, {**outer, **inner}, prefix=f"{name}.")


def _rope_scaling(rope: Fields, max_model_len: int) -> RopeScaling | None:
    if rope.number("partial_rotary_factor", default=1.0) != 1.0:
        rope.fail("partial_rotary_factor", "1")
    match rope.values["rope_type"]:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor", positive=True))
        case "llama3":
            low = rope.number("low_freq_factor", positive=True)
            high = rope.number("high_freq_factor", positive=True)
            if high <= low:
                rope.fail("high_freq_factor", f"a number above low_freq_factor, {low:g}")
            return Llama3Scaling(
                factor=rope.number("factor", positive=True),
                low_freq_factor=low,
                high_freq_factor=high,
                original_max_position_embeddings=rope.integer(
                    "original_max_position_embeddings", default=max_model_len
                ),
            )
        case _:
            rope.fail("rope_type", "default, linear or llama3")


_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    # The same memory, which the checkpoint's author chose; no kernel of a CPU computes in float16.
    "float16": torch.bfloat16,
}


def _compute_dtype(fields: Fields, dtype: Dtype) -> torch.dtype:
    if dtype is Dtype.FLOAT16:
        return torch.float16
    if dtype is not Dtype.AUTO:
        return _DTYPES[dtype.value]
    key = "dtype" if "dtype" in fields.values else "torch_dtype"
    return _DTYPES[fields.choice(key, _DTYPES, default="float32")]


def _generation_fields(path: Path) -> Fields:
    return Fields(path, optional_json(path))
