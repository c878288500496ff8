"""The modules of sentence-transformers behind the layers of a model, and the fields of their files.

A field that would change a vector and is not computed is refused by its name.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import (
    MAX_JSON_BYTES,
    Fields,
    one_line,
    optional_json,
    read_file,
)

POOLINGS: Final = ("cls", "mean", "max", "last")
ACTIVATIONS: Final = ("identity", "tanh", "relu", "gelu", "silu", "sigmoid")

_MODES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": "",
    "pooling_mode_weightedmean_tokens": "",
}
_VECTOR: Final = "sentence_embedding"


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A linear layer of vectors, and its activation."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    """One of `ACTIVATIONS`."""


@dataclass(frozen=True, slots=True)
class LayerNormSpec:
    """A layer norm of vectors, with weights and biases."""

    folder: Path
    size: int


@dataclass(frozen=True, slots=True)
class NormalizeSpec:
    """Scales vectors to length 1."""


LayerSpec = DenseSpec | LayerNormSpec | NormalizeSpec


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """What makes one vector of hidden states."""

    mode: str
    """One of `POOLINGS`."""
    include_prompt: bool = True
    """Whether the tokens of a prompt count."""
    size: int | None = None
    """Numbers of a hidden state, where the file says it."""


def read_modules(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kind and folder of each module of `modules.json`, in their order.

    Raises:
        ModelError: The file is malformed, or names code that is not of sentence-transformers.
    """
    try:
        modules = json.loads(read_file(path, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        message = f"{path}: not JSON: {one_line(str(error))}"
        raise ModelError(message) from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        message = f"{path}: expected a list of objects"
        raise ModelError(message)
    for module in modules:
        fields = Fields(path, module)
        kind, part = module.get("type"), module.get("path")
        if not isinstance(kind, str):
            fields.fail("type", "a text")
        if not isinstance(part, str) or Path(part).is_absolute() or ".." in Path(part).parts:
            fields.fail("path", "a folder inside the model's")
        if not kind.startswith("sentence_transformers."):
            fields.fail("type", "a class of sentence_transformers, not code of the checkpoint")
        if module.get("kwargs"):
            fields.fail("kwargs", "none")
        name = kind.rpartition(".")[2]
        if name == "Transformer" and Path(part) != Path():
            fields.fail("path", "the folder of the model itself for Transformer")
        yield name, path.parent / part


def read_pooling(folder: Path) -> PoolingSpec:
    """Read a module `Pooling`.

    Raises:
        ModelError: A field is malformed, or asks for another pooling.
    """
    names = ("pooling_mode", "include_prompt", *_MODES, "embedding_dimension")
    fields = _known_fields(folder, *names, "word_embedding_dimension")
    include = fields.values.get("include_prompt") is None or fields.flag("include_prompt")
    size = fields.optional_integer("embedding_dimension")
    if size is None:
        size = fields.optional_integer("word_embedding_dimension")
    return PoolingSpec(_mode(fields), include, size)


def _mode(fields: Fields) -> str:
    """Read the mode, by its name or by a flag for each."""
    named = fields.values.get("pooling_mode")
    if isinstance(named, list) and len(named) == 1:
        fields = Fields(fields.path, {**fields.values, "pooling_mode": named[0]})
        named = named[0]
    if named is not None:
        names = {"lasttoken": "last", **{mode: mode for mode in POOLINGS}}
        return names[fields.choice("pooling_mode", names, default="mean")]
    chosen = [name for name in _MODES if fields.flag(name)]
    if not chosen:
        return "mean"
    if len(chosen) != 1 or not _MODES[chosen[0]]:
        expected = "exactly one of cls_token, mean_tokens, max_tokens and lasttoken"
        message = f"{fields.path}: pooling_mode: expected {expected}, got {', '.join(chosen)}"
        raise ModelError(message)
    return _MODES[chosen[0]]


def read_dense(folder: Path) -> DenseSpec:
    """Read a module `Dense`.

    Raises:
        ModelError: A field is malformed, or asks for what is not computed.
    """
    names = ("in_features", "out_features", "bias", "activation_function", "use_residual")
    fields = _known_fields(folder, *names, "module_input_name", "module_output_name")
    _check_names(fields)
    if fields.flag("use_residual"):
        fields.fail("use_residual", "false")
    activation = "tanh"
    named = fields.values.get("activation_function")
    if "activation_function" in fields.values:
        name = named.rpartition(".")[2].lower() if isinstance(named, str) else ""
        if not str(named).startswith("torch.nn.") or name not in ACTIVATIONS:
            fields.fail("activation_function", f"{', '.join(ACTIVATIONS)} of torch.nn")
        activation = name
    return DenseSpec(
        folder=folder,
        in_features=fields.integer("in_features"),
        out_features=fields.integer("out_features"),
        bias=fields.values.get("bias") is None or fields.flag("bias"),
        activation=activation,
    )


def read_layer_norm(folder: Path) -> LayerNormSpec:
    """Read a module `LayerNorm`.

    Raises:
        ModelError: A field is malformed.
    """
    return LayerNormSpec(folder, _known_fields(folder, "dimension").integer("dimension"))


def read_normalize(folder: Path) -> NormalizeSpec:
    """Read a module `Normalize`, whose file is new.

    Raises:
        ModelError: It scales something else than vectors.
    """
    # One without a folder of its own has the model's config.json beside it.
    if not (folder / "modules.json").exists():
        _check_names(_known_fields(folder, *_NAMES))
    return NormalizeSpec()


_NAMES: Final = ("module_input_name", "module_output_name")


def _check_names(fields: Fields) -> None:
    for name in _NAMES:
        if fields.values.get(name) not in (None, _VECTOR):
            fields.fail(name, _VECTOR)


def _known_fields(folder: Path, *names: str) -> Fields:
    path = folder / "config.json"
    fields = Fields(path, optional_json(path))
    for name in fields.values:
        if name not in names:
            fields.fail(name, "no such field")
    return fields
