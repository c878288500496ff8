"""The tensors of a GGUF file as `transformers` has them: their shapes, and the order of rows."""

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from chairlift.checkpoints.files.fields import Fields
from chairlift.checkpoints.files.stored import DTYPES, StoredTensor
from chairlift.checkpoints.gguf.metadata import Metadata
from chairlift.checkpoints.gguf.names import KEY, NAMES, QUERY
from chairlift.checkpoints.gguf.reader import GgufHeader

_OF_LAYER: Final = re.compile(rf"{NAMES.layers}\.[0-9]+\.({QUERY}|{KEY})\.(?:weight|bias)")
"""Queries and keys, whose rows llama.cpp has in another order."""
_IN_PAIRS: Final = frozenset(("granite", "granitehybrid", "granitemoe", "llama", "smollm3"))
"""Architectures whose rows of queries and keys lie in the order of llama.cpp."""
_CONVOLUTION: Final = re.compile(r"blk\.[0-9]+\.(ssm_conv1d|shortconv\.conv)\.weight")
"""One input of each channel, which is no axis there."""
_VECTOR: Final = re.compile(r"blk\.[0-9]+\.(ssm_a|ssm_d|ssm_norm\.weight|exp_probs_b\.bias)")
"""Numbers of heads or experts, of which some converters make matrices."""
_ROW: Final = re.compile(r"blk\.[0-9]+\.ffn_gate_inp_shexp\.weight")
"""A matrix with one row, of which some converters make a vector."""
_UNNAMED: Final = re.compile(r"blk\.[0-9]+\.ffn_norm")
"""Names of Falcon-H1 that lack their last part."""


def open_gguf(path: Path, files: ExitStack) -> GgufHeader:
    """Open a GGUF model, whose tensors get the shapes and the order of rows of `transformers`.

    Raises:
        ModelError: A file is missing, truncated or corrupt.
    """
    header = GgufHeader.open(path, files)
    tensors = (_shaped(tensor) for tensor in header.tensors.values())
    header = replace(header, tensors={tensor.name: tensor for tensor in tensors})
    fields = Fields(path, header.metadata)
    kind = fields.values.get("general.architecture")
    if not isinstance(kind, str) or kind not in _IN_PAIRS:
        return header
    num_heads, num_kv_heads = Metadata(header, kind).num_heads()
    of_part = {QUERY: num_heads, KEY: num_kv_heads}
    # By the tensors that there are: the number of layers is what the file says.
    found = {name: _OF_LAYER.fullmatch(name) for name in header.tensors}
    heads = {name: of_part[match[1]] for name, match in found.items() if match}
    for name, number in heads.items():
        if header.tensors[name].shape[0] % (2 * number):
            fields.fail(f"{kind}.attention.head_count", f"heads of an even size in {name}")
    return header.with_heads(heads)


def _shaped(tensor: StoredTensor) -> StoredTensor:
    """Return a tensor of single numbers with the shape that it has in `transformers`."""
    name, shape = tensor.name, tensor.shape
    if tensor.dtype not in DTYPES:
        return tensor
    if len(shape) == 2 and _CONVOLUTION.fullmatch(name):
        return replace(tensor, shape=(shape[0], 1, shape[1]))
    if len(shape) == 2 and _VECTOR.fullmatch(name):
        return replace(tensor, shape=(shape[0] * shape[1],))
    if len(shape) == 1 and _ROW.fullmatch(name):
        return replace(tensor, shape=(1, *shape))
    if _UNNAMED.fullmatch(name):
        return replace(tensor, name=f"{name}.weight")
    return tensor
