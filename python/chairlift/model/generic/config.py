"""What the engine knows of a model that `transformers` computes, before its weights are read."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from chairlift.api.choices import Dtype
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import MAX_INT, MAX_OF, Fields, one_line, read_json
from chairlift.checkpoints.files.folder import CONFIG, is_gguf
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig, read_generation
from chairlift.model.families.family import LLAMA_NAMES
from chairlift.model.specs.layer_parts import Attention, Mlp, RmsNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.vocabulary import Embedding, Head

TOLERANCES: Final = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""The dtypes, and how far logits may differ, to the largest, when a prompt is computed in parts."""
_COUNTED: Final = ("layer", "block", "expert")
_MAX_PARTS: Final = 4096
"""The largest value of a field whose name says that it counts modules of these kinds."""
_NORM: Final = RmsNorm(1e-6)


def load_generic_config(folder: Path, dtype: Dtype) -> ModelConfig:
    """Read what the engine needs to know of a model: the shape of its keys, and its sizes.

    Args:
        folder: With config.json.
        dtype: What to compute in; auto is the checkpoint's, bfloat16 for a float16 one.

    Raises:
        ModelError: `transformers` is not installed or knows no decoder of this kind, or the model
            asks for something unsupported.
    """
    if is_gguf(folder):
        message = "model_impl: expected chairlift for a GGUF file, got transformers"
        raise ModelError(message)
    path = folder / CONFIG
    fields = Fields(path, read_json(path))
    for name in ("auto_map", "quantization_config"):
        if fields.values.get(name) is not None:
            fields.fail(name, "nothing with --model-impl transformers")
    _check_sizes(fields)
    with explained(folder):
        transformers = import_transformers()
        theirs = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        kind = _class_of(transformers, theirs, fields)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(theirs)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        text = theirs.get_text_config(decoder=True)
        spec = _spec(fields, text)
        max_model_len = _integer(fields, text, "max_position_embeddings")
    if (unsupported_reason := cpu.LIMITS.unsupported_reason(spec.shape)) is not None:
        message = f"{path}: {unsupported_reason}"
        raise ModelError(message)
    stored = getattr(theirs, "dtype", None)
    auto = stored if stored in TOLERANCES else torch.bfloat16
    chosen = auto if dtype is Dtype.AUTO else getattr(torch, dtype.value)
    generation, eos_token_ids = read_generation(folder, fields)
    return ModelConfig(
        architecture=kind.__name__,
        spec=spec,
        names=LLAMA_NAMES,
        dtype=chosen,
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids,
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        generation=generation,
        transformers_bytes=num_parameters * chosen.itemsize,
    )


def _check_sizes(fields: Fields) -> None:
    """Refuse an integer that no model has, before `transformers` loops so often."""
    for name, value in fields.values.items():
        if isinstance(value, dict):
            _check_sizes(Fields(fields.path, value, prefix=f"{fields.prefix}{name}."))
        elif isinstance(value, int) and not isinstance(value, bool):
            is_count = any(part in name for part in _COUNTED)
            maximum = MAX_OF.get(name, _MAX_PARTS if is_count else MAX_INT)
            if value > maximum:
                fields.fail(name, f"an integer of at most {maximum}")


def import_transformers() -> Any:  # noqa: ANN401 - a module without types
    """Import `transformers`, without its progress bars.

    Raises:
        ModelError: It is not installed.
    """
    try:
        import transformers
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        message = "model_impl: transformers is not installed: pip install 'chairlift[transformers]'"
        raise ModelError(message) from error
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def _class_of(transformers: Any, config: Any, fields: Fields) -> Any:  # noqa: ANN401 - as above
    """Return the class of a model, unless something says that its rows cannot share a step."""
    kinds = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in kinds or config.is_encoder_decoder:
        fields.fail("model_type", "a decoder that generates text")
    kind = kinds[type(config)]
    kind = kind[0] if isinstance(kind, tuple) else kind
    problems = {
        "a recurrent state": getattr(kind, "_is_stateful", False),
        "attention of its own, not by AttentionInterface": not kind._supports_attention_backend,
    }
    for problem, is_there in problems.items():
        if is_there:
            message = f"{fields.path}: {kind.__name__} has {problem}, which is not supported"
            raise ModelError(message)
    return kind


def _integer(fields: Fields, config: Any, name: str) -> int:  # noqa: ANN401 - as above
    value = getattr(config, name, None)
    return value if isinstance(value, int) and value > 0 else fields.fail(name, "an integer")


def _spec(fields: Fields, config: Any) -> ModelSpec:  # noqa: ANN401 - as above
    """Return the sizes; what the layers compute is known to `transformers` alone."""
    hidden, heads = (_integer(fields, config, n) for n in ("hidden_size", "num_attention_heads"))
    attention = Attention(
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or hidden // heads,
        # Windows are known when a layer attends: its blocks are kept as if it saw all tokens.
        rope=None,
    )
    inner = getattr(config, "intermediate_size", None)
    layer = LayerSpec(attention, Mlp(inner if isinstance(inner, int) else 4 * hidden), _NORM)
    return ModelSpec(
        embedding=Embedding(_integer(fields, config, "vocab_size"), hidden),
        layers=(layer,) * _integer(fields, config, "num_hidden_layers"),
        final_norm=_NORM,
        head=Head(is_tied=False),
    )


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn what `transformers` raises into one line.

    Raises:
        ModelError: The block raised an error; its text is the message, after the folder.
    """
    try:
        yield
    except ModelError as error:
        text = str(error)
        if text.startswith((str(folder), "model_impl")):
            raise
        message = f"{folder}: {text}"
        raise ModelError(message) from error
    except Exception as error:
        logging.getLogger(__name__).debug("transformers cannot load %s", folder, exc_info=True)
        message = f"{folder}: transformers: {one_line(str(error) or type(error).__name__)}"
        raise ModelError(message) from error
