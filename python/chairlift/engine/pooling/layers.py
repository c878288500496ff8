"""The layers behind the pooling, as functions of vectors."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.checkpoints.files.stored import Shape
from chairlift.kernels import Linear
from chairlift.model.encoders.modules import DenseSpec, LayerNormSpec, LayerSpec

Layer = Callable[[Tensor], Tensor]

_ACTIVATIONS: Final[dict[str, Layer]] = {
    "identity": lambda vectors: vectors,
    "tanh": torch.tanh,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}


def load_layers(specs: Sequence[LayerSpec]) -> list[Layer]:
    """Load the layers, in their order.

    Raises:
        ModelError: A file is missing or malformed.
    """
    return [_load(spec) for spec in specs]


def _load(spec: LayerSpec) -> Layer:
    if isinstance(spec, DenseSpec):
        return _dense(spec)
    if isinstance(spec, LayerNormSpec):
        shapes: dict[str, Shape] = {"norm.weight": (spec.size,), "norm.bias": (spec.size,)}
        tensors = _tensors(spec.folder, shapes)
        return lambda vectors: functional.layer_norm(
            vectors, (spec.size,), tensors["norm.weight"], tensors["norm.bias"]
        )
    return lambda vectors: functional.normalize(vectors, dim=-1)


def _dense(spec: DenseSpec) -> Layer:
    shapes: dict[str, Shape] = {"linear.weight": (spec.out_features, spec.in_features)}
    if spec.bias:
        shapes["linear.bias"] = (spec.out_features,)
    tensors = _tensors(spec.folder, shapes)
    linear = Linear(tensors["linear.weight"], tensors.get("linear.bias"))
    activation = _ACTIVATIONS[spec.activation]
    return lambda vectors: activation(linear(vectors))


def _tensors(folder: Path, shapes: dict[str, Shape]) -> dict[str, Tensor]:
    with ExitStack() as files:
        checkpoint = Checkpoint.open(folder, files)
        checkpoint.check(shapes)
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
        for name, tensor in tensors.items():
            checkpoint.tensors[name].read(tensor)
    return tensors
