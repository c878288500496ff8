"""What `quantization_config` of config.json says, and the tensors that layers are read from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from chairlift.errors import ModelError
from chairlift.model.fields import Fields, either
from chairlift.model.quantized.groups import BLOCK, GroupedTensor, Groups, ScaledTensor, block_type
from chairlift.model.quantized.layouts import Parts, read_awq, read_compressed, read_gptq
from chairlift.model.stored import Shape, StoredTensor, WeightTensor

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
}
"""The tensors of a quantized layer."""
_SCALES: Final = ("scales", "weight_scale", "weight_scale_inv")
_UNUSED: Final = frozenset(("k_scale", "v_scale", "q_scale"))
"""Of quantized keys and values, which have scales of their own here."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the linear layers of a checkpoint are quantized."""

    method: str
    bits: int = 8
    is_symmetric: bool = True
    stores_zero_less_one: bool = False
    """Of GPTQ: zero points are one less than they stand for."""
    tile: Shape | None = None
    """Of FP8: rows and columns that share a scale; None is a scale per row, or one."""

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
        own = Fields(fields.path, values, prefix="quantization_config.")
        readers = {
            "awq": _read_awq,
            "compressed-tensors": _read_compressed,
            "fp8": _read_fp8,
            "gptq": _read_gptq,
        }
        method = values.get("quant_method")
        if not isinstance(method, str) or method not in readers:
            own.fail("quant_method", either(readers))
        return readers[method](own)

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
            elif part not in _UNUSED:
                result[name] = tensor
        for layer, parts in layers.items():
            scales = next((parts[name] for name in _SCALES if name in parts), None)
            weight = parts.get("weight")
            if scales is None and weight is not None:
                # One of those that were left as they were: the head, norms.
                result[f"{layer}.weight"] = weight
            else:
                result[f"{layer}.weight"] = self._layer(layer, parts, scales)
        return result

    def _layer(self, layer: str, parts: Parts, scales: StoredTensor | None) -> WeightTensor:
        name = f"{layer}.weight"
        weight = parts.get("weight")
        needed: tuple[str, ...] = ("qweight", "qzeros")
        if self.method not in {"gptq", "awq"}:
            needed = ("weight_packed", "weight_shape") if weight is None else ("weight",)
        missing = [part for part in needed if part not in parts]
        if scales is None or missing:
            [any_part, *_] = parts.values()
            message = f"{any_part.path}: {layer}.{(*missing, 'scales')[0]}: missing"
            raise ModelError(message)
        if weight is not None and weight.dtype == "F8_E4M3":
            return ScaledTensor(weight, scales, name, self._tile(weight, scales))
        shape = self._check(parts, scales)
        return GroupedTensor(
            path=scales.path,
            name=name,
            shape=shape,
            dtype=block_type(self.bits, scales, has_zeros=not self.is_symmetric),
            num_bytes=sum(part.num_bytes for part in parts.values()),
            groups=self._reader(parts),
        )

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
        return partial(read_compressed, parts, self.bits)

    def _check(self, parts: Parts, scales: StoredTensor) -> Shape:
        """Check the shapes of a layer's tensors; return `[N, K]`."""
        count = 32 // self.bits
        if self.method == "gptq":
            packed, (in_words, rows) = parts["qweight"], _matrix(parts["qweight"])
            columns, groups, outputs = in_words * count, *_matrix(scales)
            zeros = (groups, -(-rows // count))
        elif self.method == "awq":
            packed, (columns, out_words) = parts["qweight"], _matrix(parts["qweight"])
            rows, groups, outputs = out_words * count, *_matrix(scales)
            zeros = (groups, out_words)
        elif "weight_packed" in parts:
            packed, (rows, _) = parts["weight_packed"], _matrix(parts["weight_packed"])
            shape = parts["weight_shape"].numbers().tolist()
            if len(shape) != 2 or shape[0] != rows or -(-shape[1] // count) != packed.shape[1]:
                _fail(parts["weight_shape"], f"the shape of {list(packed.shape)} words")
            columns, (outputs, groups) = shape[1], _matrix(scales)
            zeros = (-(-rows // count), groups)
        else:
            packed, (rows, columns) = parts["weight"], _matrix(parts["weight"])
            outputs = rows if scales.shape in {(1,), (), (1, 1)} else scales.shape[0]
            groups, zeros = 1, None
        word = "I8" if packed.name.endswith(".weight") else "I32"
        if packed.dtype != word:
            _fail(packed, f"type {word}, got {packed.dtype}")
        if scales.dtype not in {"F16", "BF16", "F32"}:
            _fail(scales, f"type F16, BF16 or F32, got {scales.dtype}")
        if outputs != rows or columns % (BLOCK * groups):
            _fail(
                scales,
                f"scales of {rows} outputs and groups of a multiple of {BLOCK} of {columns} inputs,"
                f" got {list(scales.shape)}",
            )
        stored = parts.get("qzeros", parts.get("weight_zero_point"))
        if zeros is not None and stored is not None and stored.shape != zeros:
            _fail(stored, f"shape {list(zeros)}, got {list(stored.shape)}")
        return rows, columns

    def _tile(self, weight: StoredTensor, scales: StoredTensor) -> Shape:
        rows, columns = _matrix(weight)
        num_scales = 1
        for size in scales.shape:
            num_scales *= size
        tile = self.tile or ((1, columns) if num_scales == rows else (rows, columns))
        if num_scales != -(-rows // tile[0]) * -(-columns // tile[1]):
            _fail(scales, f"a scale per tile of {list(tile)}, got {list(scales.shape)}")
        return tile


def _matrix(tensor: StoredTensor) -> tuple[int, int]:
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        _fail(tensor, f"a matrix, got shape {list(tensor.shape)}")
    rows, columns = tensor.shape
    return rows, columns


def _read_awq(fields: Fields) -> Scheme:
    if fields.integer("bits", default=4) != 4:
        fields.fail("bits", "4")
    if fields.values.get("version", "gemm").lower() != "gemm":
        fields.fail("version", "gemm")
    return Scheme("awq", 4, is_symmetric=False)


def _read_gptq(fields: Fields) -> Scheme:
    bits = fields.integer("bits", default=4)
    if bits not in {4, 8}:
        fields.fail("bits", "4 or 8")
    kind = fields.choice(
        "checkpoint_format", {"gptq": 0, "gptq_v2": 0, "marlin": 0}, default="gptq"
    )
    if kind == "marlin":
        fields.fail("checkpoint_format", "gptq or gptq_v2")
    is_symmetric = fields.values.get("sym", True)
    if not isinstance(is_symmetric, bool):
        fields.fail("sym", "true or false")
    return Scheme("gptq", bits, is_symmetric=is_symmetric, stores_zero_less_one=kind == "gptq")


def _read_fp8(fields: Fields) -> Scheme:
    tile = fields.values.get("weight_block_size")
    if tile is not None and not (
        isinstance(tile, list) and len(tile) == 2 and all(_is_size(size) for size in tile)
    ):
        fields.fail("weight_block_size", "rows and columns")
    return Scheme("fp8", tile=None if tile is None else (tile[0], tile[1]))


def _read_compressed(fields: Fields) -> Scheme:
    kind = fields.choice(
        "format",
        {"pack-quantized": 0, "int-quantized": 0, "float-quantized": 0, "naive-quantized": 0},
        default="pack-quantized",
    )
    groups = fields.values.get("config_groups")
    schemes = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    if not schemes or any(_facts(scheme) != _facts(schemes[0]) for scheme in schemes):
        fields.fail("config_groups", "one way to quantize the weights of all layers")
    weights = Fields(fields.path, schemes[0], prefix=f"{fields.prefix}config_groups.weights.")
    if weights.choice("type", {"int": 0, "float": 0}, default="int") == "float":
        if weights.integer("num_bits") != 8:
            weights.fail("num_bits", "8 for floats")
        shape = weights.values.get("block_structure")
        if isinstance(shape, list) and len(shape) == 2 and all(map(_is_size, shape)):
            return Scheme("compressed-tensors", tile=(shape[0], shape[1]))
        return Scheme("compressed-tensors")
    bits = weights.integer("num_bits")
    if bits not in {4, 8} or (bits == 4 and kind != "pack-quantized"):
        weights.fail("num_bits", "4 or 8" if kind == "pack-quantized" else "8")
    is_symmetric = weights.values.get("symmetric", True)
    if not isinstance(is_symmetric, bool):
        weights.fail("symmetric", "true or false")
    return Scheme("compressed-tensors", bits, is_symmetric=is_symmetric)


def _facts(scheme: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(scheme.get(name) for name in ("type", "num_bits", "symmetric", "block_structure"))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _fail(tensor: StoredTensor, expected: str) -> None:
    message = f"{tensor.path}: {tensor.name}: expected {expected}"
    raise ModelError(message)
