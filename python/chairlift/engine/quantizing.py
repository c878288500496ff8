"""Quantizes a model into a folder of its own, for a text that the model writes itself."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import torch
from torch import Tensor

from chairlift.api.config import Device, Dtype
from chairlift.api.errors import ConfigError, ModelError
from chairlift.api.types import Sampling, Stopping
from chairlift.checkpoints.files.fields import read_json
from chairlift.checkpoints.files.folder import is_gguf, resolve_model
from chairlift.checkpoints.quantized.stored_blocks import METHOD, stored_config
from chairlift.engine.engine import Engine
from chairlift.model.config import ModelConfig
from chairlift.model.quantizing.checkpoint import write_quantized

NUM_TOKENS: Final = 8192
"""Tokens of the text that a model writes."""
_LENGTH: Final = 128
"""Tokens of a row of it: with more rows it varies more."""
_MAX_ROWS: Final = 64
"""Rows that are written at once; the others wait, which changes no token."""
_SEED: Final = 0
_WEIGHTS: Final = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx"))
"""Ends of the names of files that the output does not have."""
_INDEX: Final = ".index.json"
_DTYPES: Final = {torch.float32: Dtype.FLOAT32, torch.bfloat16: Dtype.BFLOAT16}


def quantize_model(
    name: str,
    out: Path,
    weight_format: str,
    *,
    num_tokens: int | None = NUM_TOKENS,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write a folder whose linear layers are quantized.

    The folder appears when it is whole.

    Args:
        name: The model, as `resolve_model` takes it.
        out: The folder; it does not exist, or is empty.
        weight_format: `int8` or `int4`.
        num_tokens: Tokens of the text for whose inputs errors are compensated; None rounds each
            weight alone.
        on_progress: Called with the layers done and the layers in total, before the first layer
            and after each.

    Raises:
        ModelError: The model is not a folder that can be quantized, or cannot be read.
        ConfigError: `out` is there already, or cannot be written.
    """
    folder = resolve_model(name)
    config = _checked_config(folder)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        message = f"out: expected no folder, or an empty one, got {out}"
        raise ConfigError(message)
    ids = None if num_tokens is None else written_text(name, num_tokens)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        _copy_files(folder, partial, weight_format)
        num_layers, done = config.spec.num_layers, count(1)
        on_progress(0, num_layers)
        write_quantized(
            folder,
            config,
            partial / "model.safetensors",
            weight_format,
            ids,
            lambda: on_progress(next(done), num_layers),
        )
        partial.replace(out)
    except OSError as error:
        message = f"out: {error.filename or out}: {(error.strerror or 'error').lower()}"
        raise ConfigError(message) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def written_text(name: str, num_tokens: int) -> Tensor:
    """Let a model write a text, each row from a random token on.

    Args:
        name: The model.
        num_tokens: Tokens of all rows together, rounded up to whole rows.

    Returns:
        int32 `[rows, T]`: the same for the same model, by whatever version of these kernels.
    """
    config = ModelConfig.load(resolve_model(name))
    length = min(_LENGTH, config.max_model_len)
    num_rows = -(-num_tokens // length)
    random = Random(_SEED)
    start = [] if config.bos_token_id is None else [config.bos_token_id]
    prompts = [[*start, random.randrange(config.spec.vocab_size)] for _ in range(num_rows)]
    sampling = Sampling(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=_SEED
    )
    stopping = Stopping(max_tokens=length - len(prompts[0]), ignore_eos=True)
    rows_at_once = min(num_rows, _MAX_ROWS)
    with Engine(name, device=Device.CPU, max_model_len=length, max_num_seqs=rows_at_once) as engine:
        answers = engine.generate(prompts, sampling, stopping)
    rows = [[*p, *answer.token_ids] for p, answer in zip(prompts, answers, strict=True)]
    return torch.tensor(rows, dtype=torch.int32)


def _checked_config(folder: Path) -> ModelConfig:
    """Return the configuration of a model that can be quantized.

    Raises:
        ModelError: It cannot.
    """
    if is_gguf(folder):
        message = f"{folder}: expected a folder with config.json, got a GGUF file"
        raise ModelError(message)
    config = ModelConfig.load(folder)
    if not config.has_head or config.spec.bidirectional:
        message = f"{folder}: expected a model that generates text, got one without a head"
        raise ModelError(message)
    if config.scheme is not None and config.scheme.method == METHOD:
        message = f"{folder}: expected a model that is not quantized, got one of {METHOD} quantize"
        raise ModelError(message)
    return ModelConfig.load(folder, _DTYPES[config.dtype])


def _copy_files(folder: Path, out: Path, weight_format: str) -> None:
    """Copy what is beside the weights, and say in config.json how they are stored."""
    for path in sorted(folder.iterdir()):
        is_of_weights = path.suffix in _WEIGHTS or path.name.endswith(_INDEX)
        if path.is_file() and not is_of_weights:
            shutil.copyfile(path, out / path.name)
    values = read_json(folder / "config.json")
    values["quantization_config"] = stored_config(weight_format)
    text = json.dumps(values, indent=2) + "\n"
    (out / "config.json").write_text(text, encoding="utf-8")
