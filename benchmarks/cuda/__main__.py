"""Check the CUDA kernels on this machine's GPU, then measure them; see docs/internals/cuda.md.

    python -m benchmarks.cuda          one JSON object per line, under eight minutes

It needs Python 3.11, PyTorch for CUDA, cuda.core and Chairlift's wheel; nothing is downloaded.
"""

import json
import sys
import time

import torch

if not torch.cuda.is_available():
    sys.exit("bench-cuda: no GPU: PyTorch finds no CUDA device on this machine")

from chairlift.kernels.cuda.device import CudaDevice
from chairlift.kernels.cuda.sources import ModelKernels

from benchmarks.cuda.attention import (
    Batch,
    attention_seconds,
    copy_bytes_per_s,
    gathered_seconds,
    product_operations_per_s,
    torch_attention,
)
from benchmarks.cuda.correctness import TOLERANCE, mistakes
from benchmarks.cuda.end_to_end import QWEN3_0_6B, Bench
from benchmarks.cuda.lengths import workload
from benchmarks.cuda.mixtures import QWEN3_30B_A3B, Mixture
from benchmarks.cuda.others import FlexAttention, products

REPEAT = 20
LONG = (65_536, *[4096] * 15)
DECODES = (
    Batch("decode 32 x 4k", [4096] * 32, [1] * 32),
    Batch("decode 1 x 1k", [1024], [1]),
    Batch("decode 64k + 15 x 4k", LONG, [1] * 16),
    Batch("decode 16 equal rows of the same sum", [sum(LONG) // 16] * 16, [1] * 16),
)
PREFILL = Batch("prefill 8k, causal", [8192], [8192])


def tell(**figures: object) -> None:
    """Print one line."""
    short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(short), flush=True)


def check(device: CudaDevice) -> None:
    """End the process if a kernel computes something wrong."""
    wrong = []
    for name, error in mistakes(device):
        tell(check=name, relative_error=error, tolerance=TOLERANCE)
        wrong += [name] if error > TOLERANCE else []
    if wrong:
        sys.exit(f"bench-cuda: wrong results: {', '.join(wrong)}")


def measure_attention(device: CudaDevice, peak: float, rate: float) -> None:
    """Each batch beside PyTorch's attention and FlexAttention over gathered keys and values."""
    flex = FlexAttention(device)
    for batch in DECODES:
        seconds = attention_seconds(batch, device, REPEAT)
        is_even = len(set(batch.seq_lens)) == 1
        other, flexible = others(batch, device, flex) if is_even else (None, None)
        tell(
            name=batch.name,
            us=seconds * 1e6,
            tb_per_s=batch.kv_bytes / seconds / 1e12,
            fraction_of_copy_bandwidth=batch.kv_bytes / seconds / peak,
            torch_us=None if other is None else other * 1e6,
            flex_us=None if flexible is None else flexible * 1e6,
        )
    seconds = attention_seconds(PREFILL, device, REPEAT)
    other, flexible = others(PREFILL, device, flex)
    tell(
        name=PREFILL.name,
        ms=seconds * 1e3,
        tflop_per_s=PREFILL.num_operations / seconds / 1e12,
        fraction_of_product=PREFILL.num_operations / seconds / rate,
        torch_ms=other * 1e3,
        flex_ms=None if flexible is None else flexible * 1e3,
    )
    if flex.unsupported_reason is not None:
        tell(name="FlexAttention", skipped=flex.unsupported_reason)


def others(batch: Batch, device: CudaDevice, flex: FlexAttention) -> tuple[float, float | None]:
    """Return the seconds of PyTorch's attention, and of FlexAttention where it compiles."""
    other = gathered_seconds(batch, device, REPEAT, torch_attention(batch))
    return other, flex.seconds(batch, REPEAT)


def measure_products(device: CudaDevice, peak: float, rate: float) -> None:
    """Linear layers, which are cuBLAS's, beside what memory and arithmetic allow."""
    for product in products(QWEN3_0_6B):
        seconds = product.seconds(device, REPEAT)
        fastest = max(product.num_bytes / peak, product.num_operations / rate)
        tell(
            name=f"0.6 B {product.name}, {product.rows} rows",
            us=seconds * 1e6,
            tb_per_s=product.num_bytes / seconds / 1e12,
            tflop_per_s=product.num_operations / seconds / 1e12,
            fraction_of_roofline=fastest / seconds,
        )


def measure_experts(device: CudaDevice, peak: float, rate: float) -> None:
    """A mixture of experts, beside the weights of those that are chosen and the arithmetic."""
    mixture = Mixture(QWEN3_30B_A3B, 2048, device.device)
    for rows in (1, 32, 256, 2048):
        choices = mixture.choices(rows, count=8)
        seconds = mixture.seconds(choices, device, REPEAT)
        num_bytes, num_operations = mixture.num_bytes(choices), mixture.num_operations(rows)
        tell(
            name=f"30 B-A3B experts of a layer, {rows} rows",
            us=seconds * 1e6,
            tb_per_s=num_bytes / seconds / 1e12,
            tflop_per_s=num_operations / seconds / 1e12,
            fraction_of_roofline=max(num_bytes / peak, num_operations / rate) / seconds,
        )


def measure_engine(device: CudaDevice, peak: float) -> None:
    """Idle time between decodes, and a whole workload."""
    bench = Bench(QWEN3_0_6B, device, max_num_seqs=256, max_num_batched_tokens=2048)
    for rows in (1, 32, 256):
        for _ in range(rows):
            bench.add(16, 300)
        result = bench.run()
        wall, busy = (
            seconds / result.num_steps for seconds in (result.seconds, result.busy_seconds)
        )
        tell(
            name=f"0.6 B decode, {rows} rows",
            step_us=wall * 1e6,
            busy_us=busy * 1e6,
            idle_fraction=max(0.0, 1 - busy / wall),
        )
    for prompt, output in workload(256):
        bench.add(prompt, output)
    result = bench.run()
    traffic = result.num_steps * bench.weight_bytes()
    traffic += result.num_read_tokens * bench.kv_bytes_per_token()
    tell(
        name="0.6 B, 256 requests U(100, 1024)",
        output_tokens=result.num_output_tokens,
        seconds=result.seconds,
        tokens_per_s=result.num_output_tokens / result.seconds,
        steps=result.num_steps,
        fraction_of_traffic_bound=traffic / peak / result.seconds,
    )


def main() -> None:
    """Compiles, checks, measures."""
    began = time.perf_counter()
    device = CudaDevice()
    tell(gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    parts = {"has_experts": True, "has_states": True}
    device.load(ModelKernels(torch.bfloat16, torch.bfloat16, (128,), **parts))
    tell(compile_s=time.perf_counter() - began)
    with torch.inference_mode():
        check(device)
        peak = copy_bytes_per_s(device, REPEAT)
        tell(name="copy", tb_per_s=peak / 1e12)
        rate = product_operations_per_s(device, REPEAT)
        tell(name="product of 8192 x 8192 matrices by cuBLAS", tflop_per_s=rate / 1e12)
        measure_attention(device, peak, rate)
        measure_products(device, peak, rate)
        measure_experts(device, peak, rate)
        measure_engine(device, peak)
    tell(total_s=time.perf_counter() - began)


if __name__ == "__main__":
    main()
