"""The forms in which checkpoints of one family are published: the same tensors under other names.

A model that was saved without its head has no `model.` before its names, one that was compiled has
`_orig_mod.` there, and the text model of one with images `language_model.`. The name of the
embedding tells which form a checkpoint has.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from chairlift.checkpoints.files.names import CheckpointNames

_Tensor = TypeVar("_Tensor")
_OLDER_NORM: Final = {"gamma": "weight", "beta": "bias"}


def with_family_names(
    tensors: Mapping[str, _Tensor], names: CheckpointNames
) -> Mapping[str, _Tensor]:
    """Return tensors under the names of a family; those of an unknown form stay as they are.

    Args:
        tensors: The tensors, by the name that the file gives them.
        names: The names of the family.
    """
    family_prefix, _, leaf = names.embedding.rpartition(".")
    family_prefix = f"{family_prefix}." if family_prefix else ""
    prefix = _beginning(tensors, leaf, family_prefix)
    if prefix is None or prefix == family_prefix:
        return tensors
    head = _beginning(tensors, names.head, "")
    renamed = {}
    for name, tensor in tensors.items():
        if head and name.startswith(f"{head}{names.head}."):
            new = name.removeprefix(head)
        elif name.startswith(prefix) and not name.startswith(f"{names.head}."):
            new = family_prefix + name.removeprefix(prefix)
        else:
            new = name
        renamed[new] = tensor
    # Two tensors would get one name: the form is unknown.
    return renamed if len(renamed) == len(tensors) else tensors


def with_newer_norms(tensors: Mapping[str, _Tensor]) -> Mapping[str, _Tensor]:
    """Return tensors with the weights and biases of norms as PyTorch calls them.

    Args:
        tensors: By name; first checkpoints of BERT were converted from TensorFlow with its names.
    """
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        new = _OLDER_NORM.get(part) if layer.endswith("LayerNorm") else None
        renamed[name if new is None else f"{layer}.{new}"] = tensor
    return renamed if len(renamed) == len(tensors) else tensors


def is_alone(tensors: Iterable[str], names: CheckpointNames) -> bool:
    """Return whether tensors are those of a model that was saved without its head.

    Args:
        tensors: Their names in the file.
        names: The names of the family.
    """
    family_prefix, _, leaf = names.embedding.rpartition(".")
    prefix = _beginning(tensors, leaf, f"{family_prefix}." if family_prefix else "")
    return prefix is not None and family_prefix.partition(".")[0] not in prefix.split(".")


def _beginning(tensors: Iterable[str], part: str, expected: str) -> str | None:
    """Return what stands before a part's name; None where that is nowhere, or not in one place."""
    weight = f"{part}.weight"
    found = {
        name.removesuffix(weight)
        for name in tensors
        if name == weight or name.endswith(f".{weight}")
    }
    if expected in found:
        return expected
    return next(iter(found)) if len(found) == 1 else None
