"""`chairlift bench kernels`: each kernel, and its share of the machine's roofline."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.api.errors import ConfigError
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, Result, report

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from chairlift.kernels import Linear
    from chairlift.model.config import ModelConfig

FOREIGN_BYTES = 128 << 20
"""Bytes read between two calls of a kernel: far more than caches hold."""
ROUNDS = 1_000_000
"""Rounds of arithmetic in registers: a millisecond or more, beside which no wake-up counts."""
ARITHMETICS = ("float32", "bfloat16", "int8", "int4")
"""Types of arithmetic, and of weights that are made for the measurement."""
Layer = tuple[tuple[int, int], str]
"""Outputs and inputs of a layer, and the format of its weights."""
CONTEXT = 4096
BLOCK_SIZE = 16


Call = Callable[[int], object]


def kernels(
    model: Annotated[str, typer.Argument(help=f"Model of the shapes: {MODEL_HELP}")] = "demo",
    *,
    rows: Annotated[
        list[int] | None,
        typer.Option(help="Tokens of a step; may be repeated. Default: 1, 8, 32 and 256."),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Measured calls; the median counts.", min=3)] = 15,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="Of weights: float32, bfloat16, int8, int4, or a block such as Q4_K; may be"
            " repeated. Default: the first four, and the blocks of the model.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Default: all cores.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Measure each kernel, and its share of what memory and arithmetic allow."""
    check_model(model)
    progress = Progress("measurements", as_json=as_json)
    results = _measure(model, formats, rows or [1, 8, 32, 256], repeat, threads, progress)
    title = f"Kernels, shapes of {model}"
    report(results, title=title, as_json=as_json, by_row=True, progress=progress)


class Roofline:
    """What memory and arithmetic allow, measured again in each round of a kernel.

    The speed of a shared machine changes from second to second, so a measurement of a minute ago is
    no reference.
    """

    def __init__(self, repeat: int) -> None:
        import torch

        self._repeat = repeat
        self._words = torch.zeros(FOREIGN_BYTES // 4, dtype=torch.int32)

    def limits(self) -> Iterator[Result]:
        """Yield the limits of the machine."""
        seconds = statistics.median(self._read() for _ in range(self._repeat))
        shape = f"{FOREIGN_BYTES >> 20} MiB"
        yield _result("read", shape, seconds, FOREIGN_BYTES, 0, 1.0)
        for name in ARITHMETICS:
            rate = statistics.median(self._multiply(name) for _ in range(self._repeat))
            yield _result(name, "in registers", 1.0, 0, rate, 1.0)

    def measure(
        self,
        name: str,
        shape: str,
        call: Call,
        num_bytes: float,
        num_operations: float,
        arithmetic: str = ARITHMETICS[0],
    ) -> Result:
        """Return the median time of a call, which gets its number, and its share of the limit."""
        times, shares = [], []
        for number in range(self._repeat):
            read, rate = self._read() / FOREIGN_BYTES, self._multiply(arithmetic)
            # Brings back inputs that the read has evicted, but not those of the next call.
            call(2 * number)
            seconds = _seconds(lambda: call(2 * number + 1))  # noqa: B023
            times.append(seconds)
            shares.append(max(num_bytes * read, num_operations / rate) / seconds)
        seconds, share = statistics.median(times), statistics.median(shares)
        return _result(name, shape, seconds, num_bytes, num_operations, share)

    def _read(self) -> float:
        """Return the seconds of one read."""
        from chairlift import _core

        return _seconds(lambda: _core.read_memory(self._words))

    def _multiply(self, arithmetic: str) -> float:
        """Return the operations per second."""
        from chairlift import _core

        started = time.perf_counter()
        return _core.multiply_in_registers(arithmetic, ROUNDS) / (time.perf_counter() - started)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _result(
    name: str, shape: str, seconds: float, num_bytes: float, num_operations: float, share: float
) -> Result:
    """Return one line of the report."""
    return {
        "name": name,
        "shape": shape,
        "seconds": seconds,
        "gb_per_s": num_bytes / seconds / 1e9,
        "gflop_per_s": num_operations / seconds / 1e9,
        "fraction_of_roofline": share,
    }


def _measure(
    model: str,
    formats: list[str] | None,
    rows: list[int],
    repeat: int,
    threads: int | None,
    progress: Progress,
) -> Iterator[Result]:
    import torch

    from chairlift import _core
    from chairlift.api.machine import available_cores
    from chairlift.checkpoints.checkpoint import check_files
    from chairlift.checkpoints.files.folder import resolve_model
    from chairlift.model.config import ModelConfig

    torch.set_num_threads(1)
    _core.set_num_threads(threads or available_cores())
    folder = resolve_model(model)
    config = ModelConfig.load(folder)
    check_files(folder, may_lack_all=True)
    layers = _layers(config, formats)
    progress.expect(1 + len(ARITHMETICS) + (len(layers) + 3) * len(rows) + 1)
    yield from progress.counting(_measurements(config, layers, rows, repeat))


def _measurements(
    config: "ModelConfig", layers: list[Layer], rows: list[int], repeat: int
) -> Iterator[Result]:
    roofline = Roofline(repeat)
    yield from roofline.limits()
    for shape, name in layers:
        yield from _linear(roofline, name, shape, rows)
    yield from _elementwise(roofline, config, rows)
    yield from _decode_attention(roofline, config)


def _layers(config: "ModelConfig", formats: list[str] | None) -> list[Layer]:
    """Return outputs and inputs of each layer in each format; rows are whole blocks."""
    from chairlift import _core

    known = (*ARITHMETICS, *_core.BLOCK_TYPES)
    if unknown := [name for name in formats or () if name not in known]:
        message = f"--format: expected one of {', '.join(known)}, got {unknown[0]}"
        raise ConfigError(message)
    names = formats or [*ARITHMETICS, *sorted(set(config.quant_types.values()))]
    return [
        (shape, name)
        for shape in _shapes(config)
        for name in names
        if name in ARITHMETICS or _core.row_bytes(name, shape[1]) is not None
    ]


def _shapes(config: "ModelConfig") -> list[tuple[int, int]]:
    """Return the outputs and inputs of the layers."""
    hidden, inner, num_heads, num_kv_heads, head_dim = config.spec.shape
    heads, kv_heads = num_heads * head_dim, num_kv_heads * head_dim
    pairs = [(heads + 2 * kv_heads, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)]
    return list(dict.fromkeys(pairs))


def _linear(
    roofline: Roofline, name: str, shape: tuple[int, int], rows: list[int]
) -> Iterator[Result]:
    import torch

    outputs, inputs = shape
    dtype = torch.float32 if name == "float32" else torch.bfloat16
    # Two layers, so that no call finds the weights of the call before in a cache.
    layers = [_layer(name, shape, dtype) for _ in range(2)]
    first = layers[0]
    arithmetic = name if name in ARITHMETICS else "int4" if "4" in name else "int8"
    for num_rows in rows:
        x = torch.randn(num_rows, inputs).to(dtype)
        out = torch.empty(num_rows, outputs, dtype=dtype)

        def multiply(number: int, x: "Tensor" = x, out: "Tensor" = out) -> None:
            layers[number % 2](x, out=out)

        moved = first.num_bytes + x.nbytes + out.nbytes
        operations = 2 * num_rows * outputs * inputs
        text = f"{num_rows} x {inputs} x {outputs}"
        yield roofline.measure(name, text, multiply, moved, operations, arithmetic)


def _layer(name: str, shape: tuple[int, int], dtype: "torch.dtype") -> "Linear":
    """Make a layer whose weights are in a format."""
    import torch

    from chairlift import _core
    from chairlift.kernels import Linear

    outputs, inputs = shape
    if name in ARITHMETICS:
        weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
        return Linear(weight, None, name if name.startswith("int") else None)
    row_bytes = _core.row_bytes(name, inputs)
    assert row_bytes is not None, "rows of whole blocks"
    # Equal bytes: random ones, and zeros, would be subnormal scales, which take longer.
    blocks = torch.full((outputs, row_bytes), 0x3C, dtype=torch.uint8)
    return Linear.from_blocks(blocks, name, None, dtype)


def _elementwise(roofline: Roofline, config: "ModelConfig", rows: list[int]) -> Iterator[Result]:
    import torch

    from chairlift import kernels as ops
    from chairlift.model.specs.rope import cos_sin_table

    hidden, inner, num_heads, _, head_dim = config.spec.shape
    norm, dtype = torch.ones(hidden, dtype=torch.bfloat16), torch.bfloat16
    cos_sin = cos_sin_table(config.spec.ropes[0], head_dim, config.max_model_len)
    for num_rows in rows:
        x = torch.randn(num_rows, hidden).to(dtype)
        gate_up = torch.randn(num_rows, 2 * inner).to(dtype)
        heads = torch.randn(num_rows, num_heads, head_dim).to(dtype)
        positions = torch.arange(num_rows, dtype=torch.int32)
        normed, gated = torch.empty_like(x), torch.empty(num_rows, inner, dtype=dtype)

        def normalize(_: int, x: "Tensor" = x, out: "Tensor" = normed) -> None:
            ops.rms_norm(x, norm, 1e-6, out=out)

        def gate(_: int, x: "Tensor" = gate_up, out: "Tensor" = gated) -> None:
            ops.silu_mul(x, out=out)

        def rotate(_: int, x: "Tensor" = heads, positions: "Tensor" = positions) -> None:
            ops.rope_(x, positions, cos_sin)

        yield roofline.measure("rms_norm", f"{num_rows} x {hidden}", normalize, 2 * x.nbytes, 0)
        moved = gate_up.nbytes + gated.nbytes
        yield roofline.measure("silu_mul", f"{num_rows} x {inner}", gate, moved, 0)
        shape = f"{num_rows} x {num_heads} x {head_dim}"
        yield roofline.measure("rope", shape, rotate, 2 * heads.nbytes, 0)


def _decode_attention(roofline: Roofline, config: "ModelConfig") -> Iterator[Result]:
    import torch

    from chairlift.attention.backend import Scoring
    from chairlift.attention.cpu import CpuBackend
    from chairlift.attention.metadata import AttentionMetadata

    num_rows, blocks = 8, CONTEXT // BLOCK_SIZE
    num_heads, kv_heads, head_dim = config.spec.shape[2:]
    dtype, backend = torch.bfloat16, CpuBackend()
    num_blocks = 1 + num_rows * blocks
    caches = backend.allocate(2, num_blocks, kv_heads, BLOCK_SIZE, head_dim, dtype).fill_(0.5)
    each = torch.arange(num_rows, dtype=torch.int32)
    metadata = AttentionMetadata(
        rows=each,
        query_start_loc=torch.arange(num_rows + 1, dtype=torch.int32),
        seq_lens=torch.full_like(each, CONTEXT),
        positions=torch.full_like(each, CONTEXT - 1),
        slot_mapping=torch.zeros(1, num_rows, dtype=torch.int32),
        block_tables=torch.arange(1, num_blocks, dtype=torch.int32).view(1, num_rows, blocks),
        block_size=BLOCK_SIZE,
    )
    query = torch.randn(num_rows, num_heads, head_dim).to(dtype)
    out, scoring = torch.empty_like(query), Scoring(head_dim**-0.5)

    def attend(number: int) -> None:
        cache = caches[number % 2]
        backend.attend(query, cache, metadata, group=0, scoring=scoring, out=out)

    shape = f"{num_rows} x {num_heads} x {head_dim}, {CONTEXT} tokens"
    operations = 4 * num_rows * num_heads * head_dim * CONTEXT
    yield roofline.measure("decode_attention", shape, attend, caches[0].nbytes, operations)
