"""Values of the metadata of a GGUF file that several architectures have."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np

from chairlift.checkpoints.files.fields import Fields
from chairlift.checkpoints.gguf.names import NAMES
from chairlift.checkpoints.gguf.reader import GgufHeader

DIVISORS: Final = "rope_freqs.weight"
"""What each frequency of RoPE is divided by, `[head_dim / 2]`: the scaling of Llama 3.1."""

HYBRIDS: Final = frozenset(
    (
        "falcon-h1",
        "granitehybrid",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
    )
)
"""Architectures with a recurrent state; a value per layer is 0 where it has no meaning."""
_WITH_LAYER_SIZES: Final = frozenset(("gemma4",))
"""Architectures whose layers have sizes of their own, which their fields say."""
_WITH_LAYER_NORM: Final = frozenset(("cohere2", "nemotron_h", "nemotron_h_moe", "starcoder2"))
"""Architectures whose key of the `eps` of norms is that of layer norms."""
_WITHOUT_ROPE: Final = frozenset(("nemotron_h", "nemotron_h_moe"))
_WITH_PARTIAL_ROPE: Final = frozenset(("granitehybrid", "phi3", "qwen35", "qwen35moe", "qwen3next"))
"""Architectures that may rotate a part of a head."""
_WITH_YARN: Final = frozenset(("gpt-oss", "olmo2"))
_ROPE_FACTORS: Final = ("scaling.factor", "scale_linear")


class Metadata:
    """The values of one architecture."""

    def __init__(self, header: GgufHeader, kind: str) -> None:
        self.header = header
        self.fields = Fields(header.path, header.metadata)
        self.kind = kind

    def integer(self, name: str, *, minimum: int = 1) -> int:
        """Read an integer of the architecture."""
        return self.fields.integer(f"{self.kind}.{name}", minimum=minimum)

    def optional_integer(self, name: str) -> int:
        """Read an integer of the architecture; 0 where it is absent."""
        return self.fields.optional_integer(f"{self.kind}.{name}", minimum=0) or 0

    def has(self, part: str) -> bool:
        """Return whether some layer has a tensor, by the name behind the number of the layer."""
        at, end = f"{NAMES.layers}.", f".{part}"
        return any(
            name.startswith(at) and name.endswith(end) and name.count(".") == part.count(".") + 2
            for name in self.header.tensors
        )

    def num_layers(self) -> int:
        """Read the layers, without those that predict several tokens and come last."""
        num_blocks, others = self.integer("block_count"), self.num_others()
        if others >= num_blocks:
            self.fail("nextn_predict_layers", f"fewer than block_count, {num_blocks}")
        return num_blocks - others

    def num_others(self) -> int:
        """Read the layers behind those of the model, which predict further tokens."""
        return self.optional_integer("nextn_predict_layers") if self.kind in HYBRIDS else 0

    def fail(self, name: str, expected: str) -> NoReturn:
        """Raise the ModelError that names a value of the architecture."""
        self.fields.fail(f"{self.kind}.{name}", expected)

    def num_heads(self) -> tuple[int, int]:
        """Read the heads of queries, and those of keys and values."""
        num_heads, key = self.per_layer("attention.head_count"), "attention.head_count_kv"
        is_given = f"{self.kind}.{key}" in self.fields.values
        return num_heads, self.per_layer(key) if is_given else num_heads

    def each_layer(self, name: str) -> list[int]:
        """Read an integer of each layer; one number is that of all."""
        key = f"{self.kind}.{name}"
        values = self.fields.values.get(key)
        num_blocks = self.integer("block_count")
        if not isinstance(values, np.ndarray):
            return [self.fields.integer(key, minimum=0)] * self.num_layers()
        if len(values) != num_blocks or values.dtype.kind not in "iub":
            self.fields.fail(key, f"{num_blocks} integers")
        each = (Fields(self.header.path, {key: int(value)}) for value in values)
        return [layer.integer(key, minimum=0) for layer in each][: self.num_layers()]

    def per_layer(self, name: str) -> int:
        """Read an integer that may be given for each layer, and must be the same for all.

        Hybrids have 0 where it has no meaning.
        """
        key = f"{self.kind}.{name}"
        values = self.fields.values.get(key)
        if isinstance(values, np.ndarray) and values.size:
            num_blocks = self.integer("block_count")
            sizes = values[values != 0] if self.kind in HYBRIDS else values
            sizes = sizes[:1] if self.kind in _WITH_LAYER_SIZES else sizes
            is_one = len(values) == num_blocks and not (sizes != sizes[:1]).any()
            if values.dtype.kind not in "iu" or not is_one:
                self.fields.fail(key, "one number for all layers")
            value = sizes[0].item() if sizes.size else 0
            return Fields(self.header.path, {key: value}).integer(key, minimum=int(sizes.size > 0))
        return self.fields.integer(key, minimum=int(self.kind not in HYBRIDS))

    def eps(self) -> float:
        """Read what norms add to a mean of squares."""
        key = f"{self.kind}.attention.layer_norm_rms_epsilon"
        if self.kind in _WITH_LAYER_NORM and key not in self.fields.values:
            key = f"{self.kind}.attention.layer_norm_epsilon"
        return self.fields.number(key)

    def head_dim(self, num_heads: int) -> int | None:
        """Read the numbers of a head; None where they follow from the width."""
        head_dim = self.fields.optional_integer(f"{self.kind}.attention.key_length")
        expected = self.head_size(num_heads)
        names = ["attention.value_length"]
        if self.kind not in _WITH_PARTIAL_ROPE | _WITHOUT_ROPE:
            names.append("rope.dimension_count")
        for name in names:
            if self.fields.optional_integer(f"{self.kind}.{name}") not in {expected, None}:
                self.fields.fail(f"{self.kind}.{name}", f"all numbers of a head, {expected}")
        return head_dim

    def head_size(self, num_heads: int) -> int:
        """Read the numbers of a head."""
        head_dim = self.fields.optional_integer(f"{self.kind}.attention.key_length")
        return head_dim or self.integer("embedding_length") // max(num_heads, 1)

    def rope(self) -> Mapping[str, Any]:
        """Read the position embedding."""
        values = self._scaling()
        if self.kind in _WITH_PARTIAL_ROPE:
            size = self.head_size(self.num_heads()[0])
            rotated = self.optional_integer("rope.dimension_count") or size
            if rotated != size:
                # Half a number more, so that rounding down gives the same number again.
                return {**values, "partial_rotary_factor": (rotated + 0.5) / size}
        return values

    def _scaling(self) -> Mapping[str, Any]:
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
            return {"rope_theta": theta, **self._yarn(factor)}
        if kind == "linear" and factor not in {0.0, 1.0}:
            if DIVISORS in self.header.tensors:
                fields.fail(f"{at}{_ROPE_FACTORS[0]}", f"1, as there is {DIVISORS}")
            return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
        return {"rope_theta": theta, "rope_type": "default"}

    def _yarn(self, factor: float) -> Mapping[str, Any]:
        """Read YaRN, whose ramp is rounded to whole frequencies but in gpt-oss."""
        fields, at = self.fields, f"{self.kind}.rope.scaling."
        factors: dict[str, Any] = {"truncate": False}
        known = {"yarn_ext_factor"}
        if self.kind == "gpt-oss":
            known.add("yarn_attn_factor")
        else:
            factor_of_scores = fields.optional_number(f"{at}yarn_attn_factor", positive=True)
            factors = {"attention_factor": factor_of_scores}
        for name in sorted(known):
            if fields.optional_number(f"{at}{name}") not in {None, 1.0}:
                fields.fail(f"{at}{name}", "1: it is not supported")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": fields.integer(f"{at}original_context_length"),
            "beta_fast": fields.number(f"{at}yarn_beta_fast", default=32.0),
            "beta_slow": fields.number(f"{at}yarn_beta_slow", default=1.0),
            **factors,
        }
