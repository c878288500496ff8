"""A mixture of experts of a model's shape, without the rest of the layer."""

from collections.abc import Sequence
from functools import partial

import torch
from chairlift.kernels.cuda import ops
from chairlift.kernels.cuda.device import Accelerator
from chairlift.model.specs.layer_parts import Experts
from torch import Tensor

from benchmarks.cuda.attention import seconds_of

QWEN3_30B_A3B = Experts(128, 8, 768, "softmax", min_weight_sum=0.0)
"""Of each layer, beside a hidden size of 2,048."""


class Mixture:
    """Experts of random weights.

    Attributes:
        gate_up: `[num, 2 I, H]`
        down: `[num, H, I]`
    """

    def __init__(self, rules: Experts, hidden_size: int, device: torch.device) -> None:
        self._rules = rules
        self._hidden = hidden_size
        inner = rules.intermediate_size
        self.gate_up = _random(device, rules.num, 2 * inner, hidden_size) * hidden_size**-0.5
        self.down = _random(device, rules.num, hidden_size, inner) * inner**-0.5
        gate_up, down = ([ops.linear(own) for own in part] for part in (self.gate_up, self.down))
        self._packed = ops.experts(gate_up, down, rules)

    def __call__(self, x: Tensor, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Return what the chosen experts compute of `x`, weighed and summed."""
        out = torch.empty_like(x) if out is None else out
        width = self._packed.workspace_bytes
        workspace = torch.empty(x.shape[0], width, dtype=torch.uint8, device=x.device)
        self._packed(x, logits, out, workspace)
        return out

    def expected(self, x: Tensor, logits: Tensor) -> Tensor:
        """Return the same, in float64, for a softmax that is divided by the sum of the chosen."""
        weights, chosen = logits.double().softmax(-1).topk(self._rules.top_k)
        wide = torch.einsum("th,tkih->tki", x.double(), self.gate_up[chosen].double())
        gate, up = wide.chunk(2, dim=-1)
        inner = torch.nn.functional.silu(gate) * up
        parts = torch.einsum("tki,tkhi->tkh", inner, self.down[chosen].double())
        return torch.einsum("tkh,tk->th", parts, weights / weights.sum(-1, keepdim=True))

    def num_bytes(self, choices: Sequence[Tensor]) -> float:
        """Return the bytes of the weights that calls with such logits read, on average."""
        top_k = self._rules.top_k
        used = [len(set(logits.topk(top_k).indices.flatten().tolist())) for logits in choices]
        return float(self._numbers_of_one * self.down.itemsize * sum(used) / len(used))

    def num_operations(self, rows: int) -> int:
        """Return the multiplications and additions of so many rows."""
        return 2 * rows * self._rules.top_k * self._numbers_of_one

    @property
    def _numbers_of_one(self) -> int:
        """Weights of an expert."""
        return int(self.gate_up[0].numel() + self.down[0].numel())

    def choices(self, rows: int, count: int) -> list[Tensor]:
        """Return logits of calls that choose other experts each."""
        shape = count, rows, self._rules.num
        return list(torch.randn(shape, device=self.down.device).unbind())

    def seconds(self, choices: Sequence[Tensor], accelerator: Accelerator, repeat: int) -> float:
        """Return the time of one call, which finds its weights in no cache if there are enough."""
        x = _random(self.down.device, choices[0].shape[0], self._hidden)
        calls = [partial(self, x, logits, torch.empty_like(x)) for logits in choices]

        def all_of_them() -> None:
            for call in calls:
                call()

        return seconds_of(accelerator.recorder().capture(all_of_them), repeat) / len(calls)


def _random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device)
