"""How hidden states become a vector: the files of sentence-transformers beside a model.

`modules.json` names the modules in their order: the transformer, a pooling, and what maps vectors
behind it. A module of another kind, and a field that would change a vector and is not computed, is
refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Fields, one_line, optional_json
from chairlift.model.encoders.modules import (
    DenseSpec,
    LayerNormSpec,
    LayerSpec,
    NormalizeSpec,
    PoolingSpec,
    read_dense,
    read_layer_norm,
    read_modules,
    read_normalize,
    read_pooling,
)

SIMILARITIES: Final = ("cosine", "dot", "euclidean", "manhattan")

_KINDS: Final = "Pooling, Dense, LayerNorm, Normalize or Dropout behind one Transformer"
_SIZES_FILES: Final = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the file with the fields of the transformer: the first that is there counts."""
_FOR_LOADING: Final = frozenset(
    ("trust_remote_code", "dtype", "torch_dtype", "attn_implementation", "revision", "use_fast")
)
"""Arguments of classes of `transformers` that say nothing about a vector."""
_ARGUMENTS: Final = (
    *("model_args", "model_kwargs", "config_args", "config_kwargs"),
    *("tokenizer_args", "processor_kwargs"),
)


@dataclass(frozen=True, slots=True)
class SentenceConfig:
    """What makes a vector of hidden states."""

    pooling: PoolingSpec
    layers: tuple[LayerSpec, ...] = ()
    """Behind the pooling, in their order, without a normalization at the end."""
    normalize: bool = False
    """Whether vectors have length 1 unless a request says otherwise."""
    max_length: int | None = None
    """Tokens of a text that the authors compute; None is all that the model takes."""
    lower_case: bool = False
    """Texts are written in lower case before they are tokenized."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that go before an input, by name."""
    default_prompt: str | None = None
    """The name of the one that goes before an input unless a request names another."""
    dimensions: int | None = None
    """Numbers at the start of a vector that are kept unless a request says otherwise."""
    similarity: str = "cosine"
    """One of `SIMILARITIES`: what ranks texts."""

    def vector_size(self, folder: Path, hidden_size: int) -> int:
        """Return the numbers of a vector.

        Args:
            folder: Folder of the model, for messages.
            hidden_size: Numbers of a hidden state.

        Raises:
            ModelError: A module takes vectors of another size than those before it.
        """
        size = hidden_size
        inputs = [(folder / "modules.json: Pooling", self.pooling.size or size, size)]
        for layer in self.layers:
            if isinstance(layer, NormalizeSpec):
                continue
            expected = layer.in_features if isinstance(layer, DenseSpec) else layer.size
            inputs.append((layer.folder / "config.json", expected, size))
            size = layer.out_features if isinstance(layer, DenseSpec) else size
        for path, expected, before in inputs:
            if expected != before:
                message = f"{path}: expected vectors of {before} numbers, got {expected}"
                raise ModelError(message)
        if self.dimensions is not None and self.dimensions > size:
            limit = f"expected at most {size}, got {self.dimensions}"
            message = f"{folder / _GENERAL}: truncate_dim: {limit}"
            raise ModelError(message)
        return size


def load_sentence_config(folder: Path, default_pooling: str = "mean") -> SentenceConfig | None:
    """Read the files of sentence-transformers; None where a folder has none.

    Args:
        folder: Folder of the model.
        default_pooling: The pooling where `modules.json` names none.

    Raises:
        ModelError: A file is malformed, or names something unsupported.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    pooling, layers = _modules(path, default_pooling)
    normalize = bool(layers) and isinstance(layers[-1], NormalizeSpec)
    while layers and isinstance(layers[-1], NormalizeSpec):
        layers.pop()
    general, sizes = _general(folder), _sizes(folder)
    prompts = _prompts(general)
    name = general.values.get("default_prompt_name")
    if name is not None and name not in prompts:
        general.fail("default_prompt_name", "the name of a prompt")
    similarities = dict.fromkeys(SIMILARITIES)
    return SentenceConfig(
        pooling=pooling,
        layers=tuple(layers),
        normalize=normalize,
        max_length=_max_length(folder, sizes),
        lower_case=sizes.flag("do_lower_case"),
        prompts=prompts,
        default_prompt=name,
        dimensions=general.optional_integer("truncate_dim"),
        similarity=general.choice("similarity_fn_name", similarities, default="cosine"),
    )


def _modules(path: Path, default_pooling: str) -> tuple[PoolingSpec, list[LayerSpec]]:
    """Read the pooling, and the modules behind it."""
    pooling: PoolingSpec | None = None
    layers: list[LayerSpec] = []
    readers: Mapping[str, Callable[[Path], LayerSpec]] = {
        "Dense": read_dense,
        "LayerNorm": read_layer_norm,
        "Normalize": read_normalize,
    }
    for place, (kind, part) in enumerate(read_modules(path)):
        if (kind == "Transformer") != (place == 0):
            message = f"{path}: type: expected {_KINDS}, got {one_line(kind)}"
            raise ModelError(message)
        if kind == "Pooling" and pooling is None and not layers:
            pooling = read_pooling(part)
        elif kind in readers:
            layers.append(readers[kind](part))
        elif kind not in {"Transformer", "Dropout"}:
            message = f"{path}: type: expected {_KINDS}, got {one_line(kind)}"
            raise ModelError(message)
    return pooling or PoolingSpec(default_pooling), layers


def _general(folder: Path) -> Fields:
    fields = Fields(folder / _GENERAL, optional_json(folder / _GENERAL))
    if fields.values.get("model_type") not in (None, "SentenceTransformer"):
        fields.fail("model_type", "SentenceTransformer")
    return fields


_GENERAL: Final = "config_sentence_transformers.json"


def _sizes(folder: Path) -> Fields:
    """Read the fields of the transformer, and refuse those that are not computed."""
    path = next(
        (folder / name for name in _SIZES_FILES if (folder / name).exists()),
        folder / _SIZES_FILES[0],
    )
    fields = Fields(path, optional_json(path))
    if fields.values.get("transformer_task") not in (None, "feature-extraction"):
        fields.fail("transformer_task", "feature-extraction")
    for name in _ARGUMENTS:
        arguments = fields.values.get(name) or {}
        known = {*_FOR_LOADING}
        if name in {"tokenizer_args", "processor_kwargs"}:
            known |= {"model_max_length"}
        if not isinstance(arguments, dict) or not {*arguments} <= known:
            fields.fail(name, f"none but {', '.join(sorted(known))}")
    if fields.values.get("module_output_name") not in (None, "token_embeddings"):
        fields.fail("module_output_name", "token_embeddings")
    for name in ("processing_kwargs", "query_length", "document_length", "query_expansion"):
        if fields.values.get(name):
            fields.fail(name, "none")
    modalities = fields.values.get("modality_config")
    if modalities is not None and modalities != _TEXT:
        fields.fail("modality_config", "text by the last hidden state alone")
    return fields


_TEXT: Final = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


def _max_length(folder: Path, sizes: Fields) -> int | None:
    """Read the longest text: of the arguments of the tokenizer, the transformer, the tokenizer."""
    for name in ("processor_kwargs", "tokenizer_args"):
        arguments = Fields(sizes.path, sizes.values.get(name) or {}, f"{name}.")
        if (length := arguments.optional_integer("model_max_length")) is not None:
            return length
    if (length := sizes.optional_integer("max_seq_length")) is not None:
        return length
    path = folder / "tokenizer_config.json"
    given = optional_json(path).get("model_max_length")
    # Without one there is a number with thirty digits.
    if not isinstance(given, int | float) or not 1 <= given <= _MAX_TOKENS:
        return None
    return int(given)


_MAX_TOKENS: Final = 2**24


def _prompts(fields: Fields) -> dict[str, str]:
    prompts: Any = fields.values.get("prompts") or {}
    is_valid = isinstance(prompts, dict) and all(
        text is None or isinstance(text, str) for text in prompts.values()
    )
    if not is_valid:
        fields.fail("prompts", "an object from names to texts")
    return {name: text or "" for name, text in prompts.items()}


__all__ = [
    "DenseSpec",
    "LayerNormSpec",
    "LayerSpec",
    "NormalizeSpec",
    "PoolingSpec",
    "SentenceConfig",
    "load_sentence_config",
]
