"""What `quantization_config` of config.json says, and the tensors that layers are read from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeGuard

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Fields, either, one_line
from chairlift.checkpoints.files.stored import Shape, StoredTensor, WeightTensor
from chairlift.checkpoints.quantized.groups import (
    BLOCK,
    FloatTensor,
    GroupedTensor,
    Groups,
    ScaledTensor,
    block_type,
)
from chairlift.checkpoints.quantized.layouts import (
    Parts,
    fail,
    read_awq,
    read_compressed,
    read_gptq,
)
from chairlift.checkpoints.quantized.stored_blocks import (
    BLOCK_PARTS,
    METHOD,
    block_tensor,
    check_config,
)

_OF_METHOD: Final = {
    "gptq": frozenset(("qweight", "qzeros", "scales", "g_idx")),
    "awq": frozenset(("qweight", "qzeros", "scales")),
    "compressed-tensors": frozenset(
        (
            *("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape"),
            *("weight_g_idx", "input_scale", "input_zero_point"),
        )
    ),
    "fp8": frozenset(("weight", "weight_scale", "weight_scale_inv", "input_scale")),
    "mxfp4": frozenset(("blocks", "scales")),
    METHOD: frozenset(BLOCK_PARTS),
}
"""The tensors of a quantized layer."""
_SCALES: Final = ("scales", "weight_scale", "weight_scale_inv")
_FLOATS: Final = ("F32", "F16", "BF16")
_UNUSED: Final = frozenset(("k_scale", "v_scale", "q_scale"))
"""Scales of quantized keys and values; here these have scales of their own."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the linear layers of a checkpoint are quantized."""

    method: str
    bits: int = 8
    is_symmetric: bool = True
    stores_zero_less_one: bool = False
    """Whether stored zero points are one less than they stand for, as in GPTQ."""
    tile: Shape | None = None
    """Rows and columns of FP8 that share a scale; None is a scale per row, or one for all."""
    group_size: int | None = None
    """Integers along K that share a scale; None is a whole row."""
    is_float: bool = False
    """The codes are eight-bit floats."""

    @classmethod
    def read(cls, fields: Fields) -> "Scheme | None":
        """Read `quantization_config`; None where there is none.

        Raises:
            ModelError: A value is of a wrong type, or asks for something unsupported.
        """
        values = fields.values.get("quantization_config")
        if values is None:
            return None
        if not isinstance(values, dict):
            fields.fail("quantization_config", "an object")
        settings = Fields(fields.path, values, prefix="quantization_config.")
        readers = {
            "awq": _read_awq,
            METHOD: _read_blocks,
            "compressed-tensors": _read_compressed,
            "fp8": _read_fp8,
            "gptq": _read_gptq,
            "mxfp4": _read_mxfp4,
        }
        method = values.get("quant_method")
        if not isinstance(method, str) or method not in readers:
            settings.fail("quant_method", either(readers))
        return readers[method](settings)

    def tensors(self, stored: Mapping[str, StoredTensor]) -> dict[str, WeightTensor]:
        """Return the tensors of a checkpoint, those of each quantized layer as one `.weight`.

        Raises:
            ModelError: A tensor of a layer is missing, or has a wrong shape.
        """
        layers: dict[str, dict[str, StoredTensor]] = {}
        result: dict[str, WeightTensor] = {}
        for name, tensor in stored.items():
            layer, _, part = name.rpartition(".")
            if part in _OF_METHOD[self.method]:
                layers.setdefault(layer, {})[part] = tensor
            elif self.method == "mxfp4" and part.endswith(("_blocks", "_scales")):
                fail(tensor, f"experts, rows, groups, got shape {list(tensor.shape)}")
            elif part not in _UNUSED:
                result[name] = tensor
        for layer, parts in layers.items():
            scales = next((parts[name] for name in _SCALES if name in parts), None)
            weight = parts.get("weight")
            if scales is None and weight is not None and weight.dtype in _FLOATS:
                # One of those that were left as they were: the head, norms.
                result[f"{layer}.weight"] = weight
            else:
                result[f"{layer}.weight"] = self._layer(layer, parts, scales)
        return result

    def _layer(self, layer: str, parts: Parts, scales: StoredTensor | None) -> WeightTensor:
        name = f"{layer}.weight"
        if self.method == METHOD:
            return block_tensor(name, parts)
        missing = [part for part in self._needed(parts) if part not in parts]
        if scales is None or missing:
            [any_part, *_] = parts.values()
            message = f"{any_part.path}: {one_line(layer)}.{missing[0]}: missing"
            raise ModelError(message)
        if self.method == "mxfp4":
            return _float_tensor(parts, name)
        if self.is_float:
            return ScaledTensor(parts["weight"], scales, name, self._tile(parts["weight"], scales))
        shape = self._check(parts, scales)
        return GroupedTensor(
            path=scales.path,
            name=name,
            shape=shape,
            dtype=block_type(self.bits, scales, has_zeros=not self.is_symmetric),
            num_bytes=sum(part.num_bytes for part in parts.values()),
            groups=self._reader(parts),
        )

    def _needed(self, parts: Parts) -> tuple[str, ...]:
        """Return the tensors that a quantized layer has."""
        if self.method in {"gptq", "awq"}:
            return "qweight", "qzeros", "scales"
        if self.method == "mxfp4":
            return "blocks", "scales"
        scales = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
        if self.is_float or "weight" in parts:
            codes: tuple[str, ...] = ("weight",)
        else:
            codes = ("weight_packed", "weight_shape")
        return (*codes, scales) if self.is_symmetric else (*codes, scales, "weight_zero_point")

    def _reader(self, parts: Parts) -> Callable[[], Groups]:
        if self.method == "awq":
            return partial(read_awq, parts)
        if self.method == "gptq":
            return partial(
                read_gptq,
                parts,
                self.bits,
                is_symmetric=self.is_symmetric,
                stores_zero_less_one=self.stores_zero_less_one,
            )
        return partial(read_compressed, parts, self.bits, is_symmetric=self.is_symmetric)

    def _check(self, parts: Parts, scales: StoredTensor) -> Shape:
        """Check the types and shapes of a layer's tensors; return `[N, K]`."""
        count = 32 // self.bits
        if self.method in {"gptq", "awq"}:
            rows, columns = _matrix(parts["qweight"])
            if self.method == "gptq":
                rows, columns = columns, rows * count
            else:
                rows, columns = columns * count, rows
            groups = self._num_groups(parts["qweight"], columns)
            _expect(parts["qweight"], ("I32",), parts["qweight"].shape)
            _expect(parts["qzeros"], ("I32",), (groups, -(-rows // count)))
            _expect(scales, _FLOATS, (groups, rows))
        else:
            rows, columns = self._check_codes(parts)
            groups = self._num_groups(scales, columns)
            others: tuple[Shape, ...] = ((rows,), (1,), (), (1, 1)) if groups == 1 else ()
            _expect(scales, _FLOATS, (rows, groups), *others)
            if (zeros := parts.get("weight_zero_point")) is not None:
                is_packed = "weight_packed" in parts and zeros.dtype != "I8"
                shape = (-(-rows // count), groups) if is_packed else scales.shape
                _expect(zeros, ("I32" if is_packed else "I8",), shape)
        for name in ("g_idx", "weight_g_idx"):
            if name in parts:
                _expect(parts[name], ("I32", "I64"), (columns,))
        return rows, columns

    def _check_codes(self, parts: Parts) -> tuple[int, int]:
        """Check the codes of compressed-tensors; return rows and columns."""
        if "weight" in parts:
            rows, columns = _matrix(parts["weight"])
            _expect(parts["weight"], ("I8",), (rows, columns))
            return rows, columns
        _matrix(parts["weight_packed"])
        _expect(parts["weight_shape"], ("I64", "I32"), (2,))
        rows, columns = parts["weight_shape"].numbers().tolist()
        _expect(parts["weight_packed"], ("I32",), (rows, -(-columns * self.bits // 32)))
        return rows, columns

    def _num_groups(self, tensor: StoredTensor, columns: int) -> int:
        """Return the groups of a row."""
        size = self.group_size or columns
        if columns % size or size % BLOCK:
            fail(tensor, f"a multiple of {self.group_size or BLOCK} inputs, got {columns}")
        return columns // size

    def _tile(self, weight: StoredTensor, scales: StoredTensor) -> Shape:
        """Check a layer of eight-bit floats; return rows and columns that share a scale."""
        rows, columns = _matrix(weight)
        _expect(weight, ("F8_E4M3",), (rows, columns))
        if self.tile is not None:
            tiles = (-(-rows // self.tile[0]), -(-columns // self.tile[1]))
            _expect(scales, _FLOATS, tiles)
            return self.tile
        _expect(scales, _FLOATS, (rows, 1), (rows,), (1,), (), (1, 1))
        return (rows, columns) if scales.shape in {(1,), (), (1, 1)} else (1, columns)


def _float_tensor(parts: Parts, name: str) -> FloatTensor:
    """Check a layer of four-bit floats."""
    blocks, scales = parts["blocks"], parts["scales"]
    rows, groups = _matrix(scales)
    _expect(scales, ("U8",), scales.shape)
    _expect(blocks, ("U8",), (rows, groups, BLOCK // 2))
    return FloatTensor(blocks, scales, name)


def _expect(tensor: StoredTensor, dtypes: Sequence[str], *shapes: Shape) -> None:
    """Raise ModelError unless a tensor has one of the types, and one of the shapes."""
    if tensor.dtype not in dtypes:
        fail(tensor, f"type {either(dict.fromkeys(dtypes))}, got {one_line(tensor.dtype)}")
    if tensor.shape not in shapes:
        fail(tensor, f"shape {list(shapes[0])}, got {list(tensor.shape)}")


def _matrix(tensor: StoredTensor) -> tuple[int, int]:
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        fail(tensor, f"a matrix, got shape {list(tensor.shape)}")
    rows, columns = tensor.shape
    return rows, columns


def _read_awq(fields: Fields) -> Scheme:
    if fields.integer("bits", default=4) != 4:
        fields.fail("bits", "4")
    version = fields.values.get("version")
    if version is not None and str(version).lower() != "gemm":
        fields.fail("version", "gemm")
    return Scheme("awq", 4, is_symmetric=False, group_size=_group_size(fields))


def _read_gptq(fields: Fields) -> Scheme:
    bits = fields.integer("bits", default=4)
    if bits not in {4, 8}:
        fields.fail("bits", "4 or 8")
    kind = fields.choice(
        "checkpoint_format", {"gptq": 0, "gptq_v2": 0, "marlin": 0}, default="gptq"
    )
    if kind == "marlin":
        fields.fail("checkpoint_format", "gptq or gptq_v2")
    if fields.flag("is_marlin_format"):
        fields.fail("is_marlin_format", "false")
    return Scheme(
        "gptq",
        bits,
        is_symmetric=_is_true(fields, "sym"),
        stores_zero_less_one=kind == "gptq",
        group_size=_group_size(fields),
    )


def _is_true(fields: Fields, name: str) -> bool:
    """Read true or false; absent is true."""
    return fields.flag(name) or fields.values.get(name) is None


def _group_size(fields: Fields) -> int | None:
    size = fields.values.get("group_size")
    if size == -1:
        return None
    if not _is_size(size) or size % BLOCK:
        fields.fail("group_size", f"-1 or a multiple of {BLOCK}")
    return int(size)


def _read_fp8(fields: Fields) -> Scheme:
    tile = fields.values.get("weight_block_size")
    if tile is not None and not (
        isinstance(tile, list) and len(tile) == 2 and all(_is_size(size) for size in tile)
    ):
        fields.fail("weight_block_size", "rows and columns")
    return Scheme("fp8", tile=None if tile is None else (tile[0], tile[1]), is_float=True)


def _read_blocks(fields: Fields) -> Scheme:
    check_config(fields)
    return Scheme(METHOD)


def _read_mxfp4(_: Fields) -> Scheme:
    return Scheme("mxfp4", 4, is_float=True)


def _read_compressed(fields: Fields) -> Scheme:
    kind = fields.choice(
        "format",
        {"pack-quantized": 0, "int-quantized": 0, "float-quantized": 0, "naive-quantized": 0},
        default="pack-quantized",
    )
    if fields.values.get("transform_config"):
        fields.fail("transform_config", "none")
    groups = fields.values.get("config_groups")
    schemes = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    if not schemes or any(_facts(scheme) != _facts(schemes[0]) for scheme in schemes):
        fields.fail("config_groups", "one way to quantize the weights of all layers")
    weights = Fields(fields.path, schemes[0], prefix=f"{fields.prefix}config_groups.weights.")
    is_symmetric = _is_true(weights, "symmetric")
    bits = weights.integer("num_bits")
    if weights.choice("type", {"int": 0, "float": 0}, default="int") == "float":
        if bits != 8:
            weights.fail("num_bits", "8 for floats")
        if not is_symmetric:
            weights.fail("symmetric", "true for floats")
        return Scheme("compressed-tensors", tile=_block_structure(weights), is_float=True)
    if bits not in {4, 8} or (bits == 4 and kind != "pack-quantized"):
        weights.fail("num_bits", "4 or 8" if kind == "pack-quantized" else "8")
    has_groups = weights.values.get("group_size") is not None
    strategy = weights.choice(
        "strategy",
        {"tensor": 0, "channel": 0, "group": 0},
        default="group" if has_groups else "tensor",
    )
    return Scheme(
        "compressed-tensors",
        bits,
        is_symmetric=is_symmetric,
        group_size=_group_size(weights) if strategy == "group" else None,
    )


def _block_structure(weights: Fields) -> Shape | None:
    strategies = {"tensor": 0, "channel": 0, "block": 0}
    if weights.choice("strategy", strategies, default="tensor") != "block":
        return None
    shape = weights.values.get("block_structure")
    if not (isinstance(shape, list) and len(shape) == 2 and all(map(_is_size, shape))):
        weights.fail("block_structure", "rows and columns")
    return shape[0], shape[1]


def _facts(scheme: Mapping[str, Any]) -> tuple[object, ...]:
    names = ("type", "num_bits", "symmetric", "strategy", "group_size", "block_structure")
    return tuple(scheme.get(name) for name in names)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
