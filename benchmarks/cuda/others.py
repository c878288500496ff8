"""What others do on the same machine: FlexAttention, and matrix products by cuBLAS."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from chairlift.kernels.cuda import ops
from chairlift.kernels.cuda.device import Accelerator
from chairlift.model.config import ModelConfig
from torch import Tensor

from benchmarks.cuda.attention import (
    FOREIGN_BYTES,
    Attend,
    Batch,
    gathered_seconds,
    seconds_of,
)


def flex_attention(batch: Batch, device: torch.device) -> Attend:
    """Return FlexAttention, not compiled, for rows of one length and their last queries."""
    # A PyTorch without it still measures the rest.
    from torch.nn.attention import flex_attention as flex

    length, queries = batch.seq_lens[0], batch.num_queries[0]

    def sees(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + (length - queries) >= key

    # One query sees all.
    mask = None
    if queries > 1:
        mask = flex.create_block_mask(sees, None, None, queries, length, device=str(device))
    return partial(flex.flex_attention, block_mask=mask, enable_gqa=True)


class FlexAttention:
    """FlexAttention compiled by PyTorch, as long as this machine can.

    Attributes:
        unsupported_reason: Why it cannot, in one line; None until it has failed.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.unsupported_reason: str | None = None

    def seconds(self, batch: Batch, repeat: int) -> float | None:
        """Return the time over gathered keys and values; None if it has failed, now or before."""
        if self.unsupported_reason is not None:
            return None
        try:
            attend = torch.compile(flex_attention(batch, self._accelerator.device), dynamic=False)
            return gathered_seconds(batch, self._accelerator, repeat, attend)
        except Exception as error:  # of a compiler of PyTorch, of Triton, or of C
            reason = str(error).strip().partition("\n")[0]
            self.unsupported_reason = f"{type(error).__name__}: {reason}"
            return None


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer of a model over some rows."""

    name: str
    rows: int
    in_features: int
    out_features: int
    out_dtype: torch.dtype = torch.bfloat16

    @property
    def num_bytes(self) -> int:
        """Of weights, inputs and results."""
        inputs = (self.out_features + self.rows) * self.in_features
        return inputs * 2 + self.rows * self.out_features * self.out_dtype.itemsize

    @property
    def num_operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.in_features * self.out_features

    def launches(self, device: torch.device) -> list[Callable[[], Tensor]]:
        """Yield the layer without end, with other weights each time: no cache holds them."""
        shape = (self.out_features, self.in_features)
        x = torch.randn(self.rows, self.in_features, dtype=torch.bfloat16, device=device)
        out = torch.empty(self.rows, self.out_features, dtype=self.out_dtype, device=device)
        count = max(1, min(64, FOREIGN_BYTES // (2 * self.in_features * self.out_features)))
        weights = torch.randn(count, *shape, dtype=torch.bfloat16, device=device)
        return [partial(ops.linear(weight), x, self.out_dtype, out) for weight in weights]

    def seconds(self, accelerator: Accelerator, repeat: int) -> float:
        """Return the time of one product."""
        launches = self.launches(accelerator.device)

        def all_of_them() -> None:
            for launch in launches:
                launch()

        return seconds_of(accelerator.recorder().capture(all_of_them), repeat) / len(launches)


def products(config: ModelConfig) -> Iterator[Product]:
    """Return the largest layer of a block, and the head, for decodes of a few and of many rows."""
    for rows in (1, 32, 256):
        hidden = config.spec.hidden_size
        yield Product("gate and up", rows, hidden, 2 * config.spec.shape.intermediate_size)
        yield Product("head", rows, hidden, config.spec.vocab_size, torch.float32)
