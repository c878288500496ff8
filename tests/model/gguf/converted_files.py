"""GGUF files of small models of the table of families, whose parameters become what a file holds.

write_converted(tmp_path / "m.gguf", build("lfm2, tied"), "Q8_0")
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import PreTrainedModel

from tests.model.families import perturbed
from tests.model.gguf.converted import (
    NUMBERS,
    architecture,
    converted,
    factors,
    is_shifted,
)
from tests.model.gguf.converted_metadata import add_metadata
from tests.model.gguf.files import Types, add, add_sizes, add_tokenizer, encoded, type_of


def write_converted(
    path: Path,
    model: PreTrainedModel,
    types: Types = "F32",
    *,
    change: Callable[[dict[str, np.ndarray]], object] | None = None,
    extra: Callable[[GGUFWriter], object] | None = None,
) -> Path:
    """Write a model, and give its matrices the values that the file holds.

    Args:
        path: The file.
        model: Changed in place.
        types: Of all matrices, or by the name of a part such as `attn_v`, with a `default`.
        change: Edits the values by name before they are stored; the model does not see it.
        extra: Adds metadata or tensors.
    """
    config = model.config
    if config.model_type == "gemma4_text":
        # Values that layers have of their own cannot be read from it.
        config = SimpleNamespace(**config.to_dict())
    writer = GGUFWriter(path, architecture(config))
    add_sizes(writer, config)
    add_metadata(writer, config)
    add_tokenizer(writer, config)
    if extra is not None:
        extra(writer)
    random = np.random.default_rng(0)
    chosen = {"default": types} if isinstance(types, str) else types
    kinds, values = {}, {}
    for theirs, parameter in perturbed(model):
        if theirs == "lm_head.weight" and config.tie_word_embeddings:
            continue
        shape, own = parameter.shape, parameter.numpy()
        places = dict(converted(config, theirs, np.arange(own.size).reshape(shape)))
        multiplied = factors(config, theirs, shape)
        for name, rows in converted(config, theirs, own * multiplied):
            kinds[name] = "F32"
            values[name] = np.ascontiguousarray(rows, dtype=np.float32)
            if is_shifted(config, theirs):
                parameter.copy_(torch.from_numpy(values[name] - 1))
            if parameter.ndim == 1 or any(part in name for part in NUMBERS):
                continue
            kinds[name] = type_of(name, chosen)
            stored = encoded(values[name].reshape(-1, rows.shape[-1]), kinds[name], random)
            held = gguf.quants.dequantize(stored, GGMLQuantizationType[kinds[name]])
            place = places[name].reshape(-1)
            own.reshape(-1)[place] = held.reshape(-1) / multiplied.reshape(-1)[place]
            values[name] = stored.reshape(*rows.shape[:-1], -1)
    if change is not None:
        change(values)
    for name, tensor in values.items():
        add(writer, name, tensor, kinds.get(name, "F32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
