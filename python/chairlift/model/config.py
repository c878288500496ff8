"""What a model is, read from config.json and generation_config.json, or from a GGUF file.

A family (`families/`) turns the fields into a `ModelSpec`. A field that would
change the result and is not supported is an error: a model either computes what `transformers`
computes or does not load.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from chairlift import _core
from chairlift.api.choices import Dtype
from chairlift.api.errors import ConfigError, ModelError
from chairlift.checkpoints.checkpoint import CHECKPOINT_FILES, Checkpoint
from chairlift.checkpoints.files.fields import Fields, optional_json, read_json
from chairlift.checkpoints.files.folder import SENTENCE_MODULES, is_gguf
from chairlift.checkpoints.files.forms import is_alone, with_family_names
from chairlift.checkpoints.files.names import CheckpointNames
from chairlift.checkpoints.files.stored import DTYPES, split_experts
from chairlift.checkpoints.gguf.config import ignored_tensors, read_config, read_divisors
from chairlift.checkpoints.gguf.names import NAMES, NAMES_OF
from chairlift.checkpoints.gguf.reader import GgufHeader
from chairlift.checkpoints.quantized.scheme import Scheme
from chairlift.kernels import cpu
from chairlift.model.families import BIDIRECTIONAL, FAMILIES, Family
from chairlift.model.specs.layer_parts import Attention
from chairlift.model.specs.model_spec import ModelSpec, SpecError
from chairlift.model.specs.rope import DividedScaling
from chairlift.model.specs.share import Share, split_unsupported_reason
from chairlift.model.tensors.model_tensors import unused_tensors


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling recommended by the model's authors; None where there is no recommendation."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    typical_p: float | None = None


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
    """The dtype of weights, activations and KV cache: float32, bfloat16 or float16."""
    max_model_len: int
    """Longest prompt plus output, in tokens."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    generation: GenerationDefaults = GenerationDefaults()
    quant_types: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The blocks of tensors that linear layers keep as they are stored, by name: of a GGUF file, or
    of a quantized checkpoint. Empty where a dtype was chosen: then they are widened to that."""
    ignored: tuple[str, ...] = ()
    """How the names of tensors begin that belong to parts of the checkpoint beside this model."""
    scheme: Scheme | None = None
    """How the checkpoint says that its layers are quantized; None for a GGUF file."""
    has_head: bool = True
    """Whether the checkpoint scores the vocabulary. One that does not gives vectors, and no text;
    the spec says then that its head is tied, since the token of a vector is not looked at."""
    share: Share | None = None
    """The part of the weights that this rank holds; the spec is that of this part. None is all."""
    whole_spec: ModelSpec | None = None
    """The spec of all ranks together, where there is a share."""
    transformers_bytes: int | None = None
    """Bytes of the weights if `transformers` computes the layers; None if our own code does."""

    @property
    def stored_spec(self) -> ModelSpec:
        """The spec of the checkpoint: that of all ranks."""
        return self.spec if self.whole_spec is None else self.whole_spec

    def of_rank(self, rank: int, num_ranks: int) -> "ModelConfig":
        """Return the part of one of several ranks that compute the model together.

        Raises:
            ConfigError: Ranks cannot compute it together.
        """
        if (unsupported_reason := split_unsupported_reason(self.spec, num_ranks)) is not None:
            raise ConfigError(unsupported_reason)
        share = Share(rank, num_ranks)
        return replace(self, spec=share.of(self.spec), whole_spec=self.spec, share=share)

    @property
    def module_names(self) -> CheckpointNames:
        """What `transformers` calls the parts of the spec, whatever the checkpoint does."""
        return FAMILIES[self.architecture].names

    @property
    def stored_format(self) -> str | None:
        """The method, or the type of block that most kept tensors have; None where none is kept."""
        if self.scheme is not None and self.quant_types:
            return self.scheme.method
        counts = Counter(self.quant_types.values())
        return counts.most_common(1)[0][0] if counts else None

    @classmethod
    def load(
        cls, model: Path, dtype: Dtype = Dtype.AUTO, families: Mapping[str, Family] = FAMILIES
    ) -> "ModelConfig":
        """Read the configuration of a model.

        Args:
            model: A folder with `config.json` and perhaps `generation_config.json`, or a GGUF file.
            dtype: What to compute in; auto is the checkpoint's, bfloat16 for a float16 one and for
                one of blocks.
            families: The families of a folder's config.json, by the name in `architectures`.

        Raises:
            ModelError: A file is missing or malformed, or a field asks for something unsupported.
        """
        if is_gguf(model):
            return _load_gguf(model, dtype)
        name, family, fields = _read_family(model / "config.json", families)
        scheme = Scheme.read(fields)
        generation, eos_token_ids = read_generation(model, fields)
        spec = _read_spec(family, fields, fields.path)
        has_head = spec.bidirectional or _has_head(model, fields, spec, family.names)
        if not has_head:
            spec = replace(spec, head=replace(spec.head, is_tied=True))
        return cls(
            architecture=name,
            spec=spec,
            has_head=has_head,
            names=family.names,
            dtype=_compute_dtype(fields, dtype),
            max_model_len=fields.integer("max_position_embeddings"),
            eos_token_ids=eos_token_ids,
            bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
            generation=generation,
            quant_types=_quant_types(model, scheme, family.names, dtype),
            ignored=family.ignored + unused_tensors(spec, family.names),
            scheme=scheme,
        )


def read_generation(folder: Path, fields: Fields) -> tuple[GenerationDefaults, tuple[int, ...]]:
    """Read the sampling that the authors recommend, and the tokens that end an answer.

    Args:
        folder: A folder in which generation_config.json may be.
        fields: Fields of config.json, whose end tokens count as well.
    """
    path = folder / "generation_config.json"
    file = Fields(path, optional_json(path))
    top_k = file.optional_integer("top_k", minimum=-1)
    defaults = GenerationDefaults(
        temperature=file.optional_number("temperature"),
        # -1 is off, as vLLM has it; 0 is so here.
        top_k=None if top_k is None else max(0, top_k),
        top_p=file.optional_number("top_p", positive=True, maximum=1.0),
        min_p=file.optional_number("min_p", maximum=1.0),
        repetition_penalty=file.optional_number("repetition_penalty", positive=True),
        typical_p=file.optional_number("typical_p", positive=True, maximum=1.0),
    )
    ends = (*file.token_ids(_ENDS), *fields.token_ids(_ENDS))
    return defaults, tuple(dict.fromkeys(ends))


def _load_gguf(path: Path, dtype: Dtype) -> ModelConfig:
    with ExitStack() as files:
        header = GgufHeader.open(path, files)
        architecture, fields = read_config(header)
        family = FAMILIES[architecture]
        fields = fields.with_defaults(family.defaults)
        spec = _read_spec(family, fields, path)
        divisors = read_divisors(header, spec.shape.head_dim)
    if divisors is not None:
        spec = _with_scaling(spec, DividedScaling(divisors))
    tensors = split_experts(header.tensors)
    stored = {name: tensor.dtype for name, tensor in tensors.items()}
    names = NAMES_OF.get(architecture, NAMES)
    # What decides which experts are used, and how fast states decay, is widened.
    exact = tuple(f".{name}.weight" for name in (names["router"][0], *names["beta_alpha"]))
    in_blocks = {
        name: kind
        for name, kind in stored.items()
        if kind not in DTYPES and not name.endswith(exact)
    }
    embedding = stored.get(f"{NAMES.embedding}.weight")
    auto = torch.float32 if embedding == "F32" and not in_blocks else torch.bfloat16
    chosen = {**_DTYPES, "auto": auto, "float16": torch.float16}[dtype.value]
    return ModelConfig(
        architecture=architecture,
        spec=spec,
        names=names,
        dtype=chosen,
        max_model_len=fields.integer("max_position_embeddings"),
        eos_token_ids=fields.token_ids("eos_token_id"),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        quant_types=in_blocks if dtype is Dtype.AUTO else {},
        ignored=ignored_tensors(architecture, fields),
    )


def _with_scaling(spec: ModelSpec, scaling: DividedScaling) -> ModelSpec:
    """Return a spec whose position embeddings are scaled in another way."""

    def scaled(attention: Attention | None) -> Attention | None:
        if attention is None or attention.rope is None:
            return attention
        return replace(attention, rope=replace(attention.rope, scaling=scaling))

    layers = (replace(layer, attention=scaled(layer.attention)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


def _read_spec(family: Family, fields: Fields, path: Path) -> ModelSpec:
    """Refuse a shape that no kernel runs; a shape that a GPU runs is one that a CPU runs."""
    try:
        spec = family.spec(fields)
    except SpecError as error:
        message = f"{path}: {error}"
        raise ModelError(message) from error
    for shape in spec.shapes:
        if (unsupported_reason := cpu.LIMITS.unsupported_reason(shape)) is not None:
            message = f"{path}: {unsupported_reason}"
            raise ModelError(message)
    return spec


def _read_family(path: Path, families: Mapping[str, Family]) -> tuple[str, Family, Fields]:
    fields = Fields(path, read_json(path))
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if isinstance(name, str) and name not in families and name not in BIDIRECTIONAL:
        name = _with_head(name, families)
    family = families.get(name) if isinstance(name, str) else None
    if "auto_map" in fields.values and (family is None or not family.ignores_code):
        message = f"{path}: auto_map asks for code of the checkpoint to run, which is not supported"
        raise ModelError(message)
    if not isinstance(name, str) or family is None:
        some = ", ".join(list(FAMILIES)[:_SHOWN_FAMILIES])
        fields.fail(
            "architectures", f"{some} or another of docs/families.md, or --model-impl transformers"
        )
    if family.text:
        text = fields.values.get(family.text)
        if not isinstance(text, dict):
            fields.fail(family.text, "an object")
        text_fields = {key: value for key, value in text.items() if value is not None}
        ends = [*Fields(path, text_fields).token_ids(_ENDS), *fields.token_ids(_ENDS)]
        fields = Fields(path, {**fields.values, **text_fields, **({_ENDS: ends} if ends else {})})
    if fields.values.get("is_causal") is False:
        fields.fail("is_causal", "true")
    return name, family, fields.with_defaults(family.defaults)


def _with_head(name: str, families: Mapping[str, Family]) -> str:
    """Return the family of a decoder that was saved without its head; others keep their name."""
    for end in ("TextModel", "Model"):
        if name.endswith(end) and (full := f"{name.removesuffix(end)}ForCausalLM") in families:
            return full
    return name


def _has_head(folder: Path, fields: Fields, spec: ModelSpec, names: CheckpointNames) -> bool:
    """Return whether a checkpoint has what scores the vocabulary."""
    architectures = fields.values["architectures"]
    only = architectures if isinstance(architectures, str) else architectures[0]
    if only.endswith("Model"):
        return False
    has_files = any((folder / name).exists() for name in CHECKPOINT_FILES)
    if spec.head.is_tied or not has_files:
        return True
    with ExitStack() as files:
        stored = Checkpoint.open(folder, files).tensors
    # A model of text that lacks its head is cut short: loading names what is missing.
    if not is_alone(stored, names) and not (folder / SENTENCE_MODULES).exists():
        return True
    # Quantized heads have other parts than a weight. A checkpoint without layers is no model.
    tensors = with_family_names(stored, names)
    is_whole = f"{names.embedding}.weight" in tensors
    return not is_whole or any(name.startswith(f"{names.head}.") for name in tensors)


def _quant_types(
    folder: Path, scheme: Scheme | None, names: CheckpointNames, dtype: Dtype
) -> Mapping[str, str]:
    """Return the block types of a quantized checkpoint's tensors."""
    if scheme is None or dtype is not Dtype.AUTO:
        return {}
    with ExitStack() as files:
        tensors = Checkpoint.open(folder, files, scheme, names).tensors
    return {n: tensor.dtype for n, tensor in tensors.items() if tensor.dtype in _core.BLOCK_TYPES}


_SHOWN_FAMILIES = 4
_ENDS = "eos_token_id"
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
