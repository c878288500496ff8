"""`chairlift bench kernels`: each kernel beside what this machine can do at most."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli.bench import cuda
from chairlift.cli.bench.report import Json, Result, report

if TYPE_CHECKING:
    from torch import Tensor

    from chairlift.model.config import ModelConfig

FOREIGN_BYTES = 128 << 20
"""Weights that a kernel reads before it meets the same ones again: far more than caches hold."""
ROUNDS = 200_000
"""Of arithmetic in registers: some tens of milliseconds."""
CONTEXT = 4096
BLOCK_SIZE = 16


class BenchDevice(StrEnum):
    """Whose kernels."""

    CPU = "cpu"
    CUDA = "cuda"


def kernels(
    model: Annotated[str, typer.Argument(help="Whose shapes: demo, a folder or an id.")] = "demo",
    *,
    rows: Annotated[
        list[int] | None,
        typer.Option(help="Tokens of a step; may be repeated. Default: 1, 8, 32 and 256."),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Measured calls; the median counts.", min=3)] = 15,
    threads: Annotated[int | None, typer.Option(help="Default: all cores.", min=1)] = None,
    device: Annotated[
        BenchDevice, typer.Option(help="cuda measures the attention alone.")
    ] = BenchDevice.CPU,
    as_json: Json = False,
) -> None:
    """Time of each kernel, and its share of what memory and arithmetic allow."""
    if device is BenchDevice.CUDA:
        report(
            cuda.measure(model, repeat),
            title=f"GPU, shapes of {model}",
            as_json=as_json,
            by_row=True,
        )
        return
    results = _measure(model, rows or [1, 8, 32, 256], repeat, threads)
    report(results, title=f"Kernels, shapes of {model}", as_json=as_json, by_row=True)


@dataclass(frozen=True, slots=True)
class Roofline:
    """What was measured of the machine in this run."""

    bytes_per_s: float
    operations_per_s: dict[str, float]
    """By arithmetic; what has none of its own is measured by that of float32."""

    def result(
        self, name: str, shape: str, seconds: float, num_bytes: float, num_operations: float
    ) -> Result:
        """One line of the report."""
        fastest = max(
            num_bytes / self.bytes_per_s,
            num_operations / self.operations_per_s.get(name, self.operations_per_s["float32"]),
        )
        return {
            "name": name,
            "shape": shape,
            "seconds": seconds,
            "gb_per_s": num_bytes / seconds / 1e9,
            "gflop_per_s": num_operations / seconds / 1e9,
            "fraction_of_roofline": fastest / seconds,
        }


def _measure(model: str, rows: list[int], repeat: int, threads: int | None) -> Iterator[Result]:
    import torch

    from chairlift import _core
    from chairlift.machine import available_cores
    from chairlift.model.config import ModelConfig, resolve_model

    torch.set_num_threads(1)
    _core.set_num_threads(threads or available_cores())
    config = ModelConfig.load(resolve_model(model))
    roofline = _roofline(repeat)
    seconds = FOREIGN_BYTES / roofline.bytes_per_s
    yield roofline.result("read", f"{FOREIGN_BYTES >> 20} MiB", seconds, FOREIGN_BYTES, 0)
    for name, rate in roofline.operations_per_s.items():
        yield roofline.result(name, "in registers", 1.0, 0, rate)
    for outputs, inputs in _shapes(config):
        for name in ("float32", "bfloat16", "int8", "int4"):
            yield from _linear(roofline, name, (outputs, inputs), rows, repeat)
    yield from _elementwise(roofline, config, rows, repeat)
    yield from _decode_attention(roofline, config, repeat)


def _roofline(repeat: int) -> Roofline:
    import torch

    from chairlift import _core

    words = torch.zeros(FOREIGN_BYTES // 4, dtype=torch.int32)
    seconds = _median(lambda _: _core.read_memory(words), repeat)

    def rate(arithmetic: str) -> float:
        count = _core.multiply_in_registers(arithmetic, ROUNDS)
        return count / _median(lambda _: _core.multiply_in_registers(arithmetic, ROUNDS), repeat)

    arithmetics = ("float32", "bfloat16", "int8", "int4")
    return Roofline(FOREIGN_BYTES / seconds, {name: rate(name) for name in arithmetics})


def _median(call: Callable[[int], object], repeat: int) -> float:
    """Seconds of one call, which gets its number."""
    seconds = []
    for number in range(repeat + 1):
        started = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def _shapes(config: "ModelConfig") -> list[tuple[int, int]]:
    """Outputs and inputs of the layers."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    pairs = [(heads + 2 * kv_heads, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)]
    return list(dict.fromkeys(pairs))


def _linear(
    roofline: Roofline, name: str, shape: tuple[int, int], rows: list[int], repeat: int
) -> Iterator[Result]:
    import torch

    from chairlift.kernels import Linear

    outputs, inputs = shape
    dtype = torch.float32 if name == "float32" else torch.bfloat16
    quantize = name if name.startswith("int") else None
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
    first = Linear(weight, None, quantize)
    # At least two, so that no call meets what the one before has left in a core's own cache.
    count = min(max(2, FOREIGN_BYTES // first.num_bytes), repeat + 1)
    layers = [first, *(Linear(weight, None, quantize) for _ in range(count - 1))]
    for num_rows in rows:
        x = torch.randn(num_rows, inputs).to(dtype)
        out = torch.empty(num_rows, outputs, dtype=dtype)
        seconds = _median(lambda number: layers[number % count](x, out=out), repeat)  # noqa: B023
        moved = first.num_bytes + x.nbytes + out.nbytes
        operations = 2 * num_rows * outputs * inputs
        text = f"{num_rows} x {inputs} x {outputs}"
        yield roofline.result(name, text, seconds, moved, operations)


def _elementwise(
    roofline: Roofline, config: "ModelConfig", rows: list[int], repeat: int
) -> Iterator[Result]:
    import torch

    from chairlift import kernels as ops
    from chairlift.model.transformer import cos_sin_table

    hidden, inner, dtype = config.hidden_size, config.intermediate_size, torch.bfloat16
    norm, cos_sin = torch.ones(hidden, dtype=dtype), cos_sin_table(config)
    for num_rows in rows:
        x = torch.randn(num_rows, hidden).to(dtype)
        gate_up = torch.randn(num_rows, 2 * inner).to(dtype)
        heads = torch.randn(num_rows, config.num_heads, config.head_dim).to(dtype)
        positions = torch.arange(num_rows, dtype=torch.int32)
        normed, gated = torch.empty_like(x), torch.empty(num_rows, inner, dtype=dtype)
        shape = f"{num_rows} x {hidden}"
        seconds = _median(lambda _: ops.rms_norm(x, norm, 1e-6, out=normed), repeat)  # noqa: B023
        yield roofline.result("rms_norm", shape, seconds, 2 * x.nbytes, 0)
        shape = f"{num_rows} x {inner}"
        seconds = _median(lambda _: ops.silu_mul(gate_up, out=gated), repeat)  # noqa: B023
        yield roofline.result("silu_mul", shape, seconds, gate_up.nbytes * 3 // 2, 0)
        shape = f"{num_rows} x {config.num_heads} x {config.head_dim}"
        seconds = _median(lambda _: ops.rope_(heads, positions, cos_sin), repeat)  # noqa: B023
        yield roofline.result("rope", shape, seconds, 2 * heads.nbytes, 0)


def _decode_attention(roofline: Roofline, config: "ModelConfig", repeat: int) -> Iterator[Result]:
    import torch

    from chairlift.attention.cpu import CpuBackend
    from chairlift.attention.metadata import AttentionMetadata

    num_rows, blocks = 8, CONTEXT // BLOCK_SIZE
    kv_heads, head_dim = config.num_kv_heads, config.head_dim
    dtype, backend = torch.bfloat16, CpuBackend()
    num_blocks = 1 + num_rows * blocks
    cache = backend.allocate(1, num_blocks, kv_heads, BLOCK_SIZE, head_dim, dtype)[0].fill_(0.5)
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
    query = torch.randn(num_rows, config.num_heads, head_dim).to(dtype)
    out, scale = torch.empty_like(query), head_dim**-0.5

    def attend(_: int) -> "Tensor":
        return backend.attend(query, cache, metadata, group=0, scale=scale, window=None, out=out)

    shape = f"{num_rows} x {config.num_heads} x {head_dim}, {CONTEXT} tokens"
    operations = 4 * num_rows * config.num_heads * head_dim * CONTEXT
    seconds = _median(attend, repeat)
    yield roofline.result("decode_attention", shape, seconds, cache.nbytes, operations)
