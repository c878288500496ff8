"""What a model is, read from its folder: `config.json` and `generation_config.json`.

A family (`families/`) turns the fields into a `ModelSpec`. A field that would
change the result and is not supported is an error: a model either computes what `transformers`
computes or does not load.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from chairlift.choices import Dtype
from chairlift.errors import ModelError
from chairlift.kernels import cpu
from chairlift.model.families import FAMILIES, Family
from chairlift.model.fields import Fields, either, optional_json, read_json
from chairlift.model.spec import ModelSpec
from chairlift.model.tensors import CheckpointNames


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling recommended by the model's authors; None where there is no recommendation."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model; every field is resolved, and none changes later."""

    architecture: str
    """Name in `FAMILIES`."""
    spec: ModelSpec
    """What the layers compute."""
    names: CheckpointNames
    """What a checkpoint calls the parts of the spec."""
    dtype: torch.dtype
    """Of weights, activations and KV cache: float32, bfloat16 or float16."""
    max_model_len: int
    """Longest prompt plus output, in tokens."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    generation: GenerationDefaults = GenerationDefaults()

    @classmethod
    def load(cls, folder: Path, dtype: Dtype = Dtype.AUTO) -> "ModelConfig":
        """Read a model folder.

        Args:
            folder: Holds `config.json` and perhaps `generation_config.json`.
            dtype: What to compute in; auto is the checkpoint's, bfloat16 for a float16 one.

        Raises:
            ModelError: A file is missing or malformed, or a field asks for something unsupported.
        """
        name, family, fields = _read_family(folder / "config.json")
        _refuse_unsupported(fields)
        path = folder / "generation_config.json"
        generation = Fields(path, optional_json(path))
        spec = family.spec(fields)
        # A shape that a GPU runs is one that a CPU runs.
        if (obstacle := cpu.LIMITS.obstacle(spec.shape)) is not None:
            message = f"{fields.path}: {obstacle}"
            raise ModelError(message)
        return cls(
            architecture=name,
            spec=spec,
            names=family.names,
            dtype=_compute_dtype(fields, dtype),
            max_model_len=fields.integer("max_position_embeddings"),
            eos_token_ids=generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id"),
            bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
            generation=GenerationDefaults(
                temperature=generation.optional_number("temperature"),
                top_k=generation.optional_integer("top_k", least=0),
                top_p=generation.optional_number("top_p", positive=True, most=1.0),
                min_p=generation.optional_number("min_p", most=1.0),
            ),
        )


def _read_family(path: Path) -> tuple[str, Family, Fields]:
    fields = Fields(path, read_json(path))
    if "auto_map" in fields.values:
        message = f"{path}: auto_map asks for code of the checkpoint to run, which is not supported"
        raise ModelError(message)
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in FAMILIES:
        fields.fail("architectures", either(FAMILIES))
    family = FAMILIES[name]
    return name, family, fields.with_defaults(family.defaults)


def _refuse_unsupported(fields: Fields) -> None:
    if fields.values.get("quantization_config") is not None:
        fields.fail("quantization_config", "absent: load the unquantized checkpoint")
    if fields.values.get("hidden_act", "silu") != "silu":
        fields.fail("hidden_act", "silu")


_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    # The same memory; no kernel of a CPU computes in float16.
    "float16": torch.bfloat16,
}


def _compute_dtype(fields: Fields, dtype: Dtype) -> torch.dtype:
    if dtype is Dtype.FLOAT16:
        return torch.float16
    if dtype is not Dtype.AUTO:
        return _DTYPES[dtype.value]
    key = "dtype" if "dtype" in fields.values else "torch_dtype"
    return _DTYPES[fields.choice(key, _DTYPES, default="float32")]
