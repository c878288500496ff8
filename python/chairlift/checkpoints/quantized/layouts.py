"""How AWQ, GPTQ and compressed-tensors lay codes out, and how they are read.

Codes of four (eight) bits are packed into 32-bit integers, eight (four) to one, the first in the
lowest bits. K are the inputs of a layer, N its outputs, G its groups along K.

```text
GPTQ                qweight [K / 8, N], qzeros [G, N / 8], scales [G, N], g_idx [K]
AWQ                 qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]; eight outputs in the order
                    0 2 4 6 1 3 5 7
compressed-tensors  weight_packed [N, K / 8], weight_zero_point [N / 8, G], weight_scale [N, G]; or
                    weight [N, K] of signed bytes, weight_zero_point and weight_scale [N, 1]
```

Sources: the packers of AutoGPTQ, AutoAWQ and compressed-tensors.
"""

from collections.abc import Mapping
from typing import Final, NoReturn

import torch
from torch import Tensor

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import one_line
from chairlift.checkpoints.files.stored import StoredTensor
from chairlift.checkpoints.quantized.groups import Groups

Parts = Mapping[str, StoredTensor]
"""The tensors of a layer, by the last part of their names."""

_AWQ_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight outputs lies in an integer."""


def unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Return the codes of packed integers.

    Args:
        packed: int32, of any shape.
        bits: Bits of a code: 4 or 8.
        dim: The axis along which codes are packed.

    Returns:
        uint8, of the same shape but for `dim`, which is `32 / bits` times as long.
    """
    count = 32 // bits
    shifts = torch.arange(count, dtype=torch.int32) * bits
    shifts = shifts.view(-1, *[1] * (packed.ndim - dim - 1))
    codes = (packed.unsqueeze(dim + 1) >> shifts & ((1 << bits) - 1)).to(torch.uint8)
    return codes.flatten(dim, dim + 1)


def read_gptq(parts: Parts, bits: int, *, is_symmetric: bool, stores_zero_less_one: bool) -> Groups:
    """Read a layer of GPTQ.

    Raises:
        ModelError: Its groups are not neighbours (`desc_act`), or its zero points are not those of
            a symmetric layer.
    """
    if "g_idx" in parts:
        _check_order(parts["g_idx"], parts["scales"].shape[0], "desc_act")
    codes = unpack(parts["qweight"].numbers(), bits, 0).T.contiguous()
    scales = parts["scales"].numbers().float().T.contiguous()
    zeros = unpack(parts["qzeros"].numbers(), bits, 1).T[: len(codes)].contiguous()
    if stores_zero_less_one:
        zeros = zeros + 1 & ((1 << bits) - 1)
    if not is_symmetric:
        return Groups(codes, scales, zeros.float())
    if (zeros != 1 << bits - 1).any():
        fail(parts["qzeros"], f"zero points of {1 << bits - 1}, as quantization_config.sym says")
    return Groups(codes, scales, None)


def read_awq(parts: Parts) -> Groups:
    """Read a layer of AWQ, of four bits."""

    def outputs(packed: Tensor) -> Tensor:
        codes = unpack(packed, 4, 1)
        return codes.view(len(codes), -1, 8)[..., _AWQ_PLACES].flatten(1).T.contiguous()

    return Groups(
        outputs(parts["qweight"].numbers()),
        parts["scales"].numbers().float().T.contiguous(),
        outputs(parts["qzeros"].numbers()).float(),
    )


def read_compressed(parts: Parts, bits: int, *, is_symmetric: bool) -> Groups:
    """Read a layer of compressed-tensors, packed or of signed bytes.

    Raises:
        ModelError: Its groups are not neighbours (`actorder`), or its zero points are not those of
            a symmetric layer.
    """
    if "weight_packed" in parts:
        _, columns = parts["weight_shape"].numbers().tolist()
        codes = unpack(parts["weight_packed"].numbers(), bits, 1)[:, :columns].contiguous()
    else:
        codes = (parts["weight"].numbers() ^ -128).view(torch.uint8)
    stored, middle, rows = parts["weight_scale"], 1 << bits - 1, len(codes)
    num_groups = stored.shape[1] if len(stored.shape) == 2 else 1
    scales = stored.numbers().float().view(-1, num_groups).expand(rows, -1)
    if "weight_g_idx" in parts:
        _check_order(parts["weight_g_idx"], num_groups, "actorder")
    if "weight_zero_point" not in parts:
        return Groups(codes, scales, None)
    point = parts["weight_zero_point"]
    zeros = point.numbers()
    zeros = zeros.float() + middle if point.dtype == "I8" else unpack(zeros, bits, 0)[:rows].float()
    if not is_symmetric:
        return Groups(codes, scales, zeros.view(-1, num_groups).expand(rows, -1))
    if (zeros != middle).any():
        fail(point, f"zero points of {middle}, as symmetric of quantization_config says")
    return Groups(codes, scales, None)


def _check_order(index: StoredTensor, num_groups: int, setting: str) -> None:
    """Raise ModelError unless the groups of inputs `[K]` are neighbours."""
    (columns,) = index.shape
    if not torch.equal(index.numbers().long(), torch.arange(columns) // (columns // num_groups)):
        fail(index, f"groups of neighbours: {setting} with reordered inputs is refused")


def fail(tensor: StoredTensor, expected: str) -> NoReturn:
    """Refuse a tensor.

    Raises:
        ModelError: Always; it names the file, the tensor and what was expected.
    """
    message = f"{tensor.path}: {one_line(tensor.name)}: expected {expected}"
    raise ModelError(message)
