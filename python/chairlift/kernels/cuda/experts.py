"""Mixtures of experts on a GPU: route, group by expert, both layers, sum.

Nothing waits for the host: grids have room for any choice of experts, so that recorded launches
serve every batch of their size.
"""

from collections.abc import Sequence
from ctypes import c_float, c_int, c_longlong
from math import inf
from typing import Final, NamedTuple

import torch
from torch import Tensor

from chairlift.kernels.cuda.launch import launcher_of
from chairlift.kernels.cuda.linear import Linear
from chairlift.kernels.cuda.operation import operation
from chairlift.kernels.cuda.row_ops import ACTIVATIONS
from chairlift.kernels.cuda.sources import EXPERT_ROWS, kernel_name
from chairlift.kernels.interface import ExpertRules, LinearLayer

SCORES: Final = ("softmax", "softmax_of_chosen", "sigmoid")
"""Scores in the order of the numbers by which `route_experts` knows them."""
MAX_EXPERTS: Final = 2048
"""A block of `route_experts` holds the scores of four tokens in 32 KiB."""
MAX_TOP_K: Final = 32
"""A lane of a warp has a choice."""
_INT32: Final = 4


class ExpertGate(NamedTuple):
    """What is between the layers: `activation(gate) * up`, or the activation alone.

    With silu it is `(up + offset) * gate / (1 + e^(-alpha gate))`.
    """

    parts: int
    """2, or 1 where there are no gates."""
    activation: int
    """Index into `ACTIVATIONS`."""
    limit: float
    """The bound of gates from above and of ups from both sides."""
    alpha: float
    offset: float

    @classmethod
    def of(cls, rules: ExpertRules) -> "ExpertGate":
        """Return the gate of a mixture; without a limit nothing is clamped."""
        kind = 1 + rules.gated, ACTIVATIONS.index(rules.activation)
        if rules.limit is None:
            return cls(*kind, inf, 1.0, 0.0)
        return cls(*kind, rules.limit, rules.alpha, 1.0)


class _Parts(NamedTuple):
    """The workspace of a call, cut into what lies between its kernels; P pairs of token, choice."""

    tile_rows: int
    """Rows of a tile."""
    inner: Tensor
    """`[P, I]`, or a part of them, in the order of experts."""
    outputs: Tensor
    """`[P, H]`, in the order of tokens."""
    weights: Tensor
    """float32 `[P]`"""
    chosen: Tensor
    """int32 `[P]`"""
    order: Tensor
    """int32 `[P]`"""
    tiles: Tensor
    """int32 `[max_tiles, 3]`"""


def expert_bytes(rules: ExpertRules, hidden_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of a token's workspace: the parts of its pairs, and a tile for each."""
    numbers = rules.intermediate_size + hidden_size
    return rules.top_k * (numbers * dtype.itemsize + (3 + 3) * _INT32)


class Experts:
    """A mixture of experts; see `ExpertLayers`."""

    def __init__(
        self,
        gate_up: Sequence[LinearLayer],
        down: Sequence[LinearLayer],
        rules: ExpertRules,
        choice_bias: Sequence[float] | None = None,
        factors: Sequence[float] | None = None,
    ) -> None:
        self._gate_up, self._gate_up_bias = _stacked(gate_up)
        self._down, self._down_bias = _stacked(down)
        self.num_bytes = sum(layer.num_bytes for layer in (*gate_up, *down))
        self._rules = rules
        self._gate = ExpertGate.of(rules)
        self._num, self._hidden, self._inner = self._down.shape
        self.inner_dtype = self._down.dtype
        self._choice_bias, self._factors = (
            None if numbers is None else torch.tensor(numbers, device=self._down.device)
            for numbers in (choice_bias, factors)
        )
        self.workspace_bytes = expert_bytes(rules, self._hidden, self._down.dtype)

    def __call__(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:
        """Write what the chosen experts compute of `x`; see `ExpertLayers`."""
        parts = self._parts(workspace, x.shape[0])
        self._choose(parts, logits)
        self._first(parts, x)
        self._second(parts, out)

    def inside(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:
        """Write the numbers between both layers; see `SplitExpertLayers`."""
        parts = self._parts(workspace, x.shape[0], out.shape[1])
        self._choose(parts, logits)
        self._first(parts, x)
        # Each rank has its pairs within an expert in another order.
        out.index_copy_(0, parts.order.long(), parts.inner)

    def outside(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:  # noqa: ARG002, as `SplitExpertLayers`
        """Write the weighed sums of the second layers; see `SplitExpertLayers`."""
        parts = self._parts(workspace, out.shape[0])
        torch.index_select(x, 0, parts.order, out=parts.inner)
        self._second(parts, out)

    def _choose(self, parts: _Parts, logits: Tensor) -> None:
        """Choose the experts of each token, and sort the pairs by expert."""
        rules = self._rules
        route_experts(
            parts.chosen,
            parts.weights,
            logits,
            choice_bias=self._choice_bias,
            factors=self._factors,
            top_k=rules.top_k,
            scores=SCORES.index(rules.scores),
            min_weight_sum=_min_weight_sum(rules),
            multiplier=rules.multiplier,
        )
        group_by_expert(parts.order, parts.tiles, parts.chosen, self._num, parts.tile_rows)

    def _first(self, parts: _Parts, x: Tensor) -> None:
        """Compute the first layer of the experts."""
        expert_gate_up(
            parts.inner,
            x,
            self._gate_up,
            self._gate_up_bias,
            order=parts.order,
            tiles=parts.tiles,
            top_k=self._rules.top_k,
            tile_rows=parts.tile_rows,
            **self._gate._asdict(),
        )

    def _second(self, parts: _Parts, out: Tensor) -> None:
        """Compute the second layer of the experts, and the sum of each token."""
        expert_down(
            parts.outputs,
            parts.inner,
            self._down,
            self._down_bias,
            order=parts.order,
            tiles=parts.tiles,
            tile_rows=parts.tile_rows,
        )
        sum_experts(out, parts.outputs, parts.weights, self._rules.top_k)

    def _tile_rows(self, num_tokens: int) -> int:
        """Large tiles where experts have enough rows to fill them; which one changes no bits."""
        small, large = EXPERT_ROWS
        rows_of_each = num_tokens * self._rules.top_k / self._num
        return large if rows_of_each >= large / 2 else small

    def _parts(self, workspace: Tensor, num_tokens: int, inner: int | None = None) -> _Parts:
        """Cut the workspace.

        Args:
            workspace: That of the call.
            num_tokens: T.
            inner: Numbers between the layers of which this process has some; None is all.
        """
        num_pairs, dtype = num_tokens * self._rules.top_k, self._down.dtype
        tile_rows = self._tile_rows(num_tokens)
        places = workspace.view(-1)
        begin = 0

        def cut(dtype: torch.dtype, *shape: int) -> Tensor:
            nonlocal begin
            size = dtype.itemsize * torch.Size(shape).numel()
            begin += size
            return places[begin - size : begin].view(dtype).view(shape)

        between = cut(dtype, num_pairs, self._inner).view(-1)
        inner = self._inner if inner is None else inner
        return _Parts(
            tile_rows,
            between[: num_pairs * inner].view(num_pairs, inner),
            cut(dtype, num_pairs, self._hidden),
            cut(torch.float32, num_pairs),
            cut(torch.int32, num_pairs),
            cut(torch.int32, num_pairs),
            cut(torch.int32, max_tiles(num_pairs, self._num, tile_rows), 3),
        )


experts = Experts


def max_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    """Return the tiles of the worst choice: each expert that has rows may have a tile of one."""
    used = min(num_pairs, num_experts)
    return used + (num_pairs - used) // tile_rows


def gemm_shared_bytes(tile_rows: int) -> int:
    """Return the shared memory of a product of tiles of so many rows."""
    columns, stages = (64, 4) if tile_rows == min(EXPERT_ROWS) else (128, 3)
    return (tile_rows + columns) * 128 * stages


def _gemm_columns(tile_rows: int) -> int:
    return 64 if tile_rows == min(EXPERT_ROWS) else 128


def _min_weight_sum(rules: ExpertRules) -> float:
    """Negative: the weights are not divided by their sum."""
    return -1.0 if rules.min_weight_sum is None else rules.min_weight_sum


def _stacked(layers: Sequence[LinearLayer]) -> tuple[Tensor, Tensor | None]:
    """Return the weights of all experts in one tensor, and their biases."""
    dense = [layer for layer in layers if isinstance(layer, Linear)]
    assert len(dense) == len(layers), "no others are made for a GPU"
    biases = [layer.bias for layer in dense if layer.bias is not None]
    return torch.stack([layer.weight for layer in dense]), torch.stack(biases) if biases else None


@operation("route_experts", "chosen", "weights")
def route_experts(
    chosen: Tensor,
    weights: Tensor,
    logits: Tensor,
    choice_bias: Tensor | None,
    factors: Tensor | None,
    top_k: int,
    scores: int,
    min_weight_sum: float,
    multiplier: float,
) -> None:
    """Choose the experts of each token, and weigh them.

    Args:
        chosen: int32 `[T * top_k]`, ascending for each token.
        weights: float32, the same.
        logits: float32 `[T, num_experts]`; rows may be strided.
        choice_bias: float32 `[num_experts]`, for the choice alone.
        factors: float32 `[num_experts]`, of the weights.
        top_k: Experts of each token.
        scores: Index into `SCORES`.
        min_weight_sum: The weights of a token are divided by their sum, which is at least this; a
            negative one leaves them.
        multiplier: Multiplies the weights after that.
    """
    num_tokens, num_experts = logits.shape
    launcher_of(chosen).launch(
        kernel_name("route_experts"),
        (-(-num_tokens // 4), 1, 1),
        128,
        16 * num_experts,
        chosen,
        weights,
        logits,
        choice_bias,
        factors,
        c_longlong(logits.stride(0)),
        *map(c_int, (num_tokens, num_experts, top_k, scores)),
        c_float(min_weight_sum),
        c_float(multiplier),
    )


@operation("group_by_expert", "order", "tiles")
def group_by_expert(
    order: Tensor, tiles: Tensor, chosen: Tensor, num_experts: int, tile_rows: int
) -> None:
    """Sort pairs by expert, and cut those of each into tiles.

    Args:
        order: int32 `[P]`.
        tiles: int32 `[max_tiles, 3]`: expert (-1: not needed), first place in `order`, how many.
        chosen: int32 `[P]`.
        num_experts: Experts of the layer.
        tile_rows: Rows of a tile, at most.
    """
    sizes = chosen.numel(), num_experts, tile_rows, tiles.shape[0]
    launcher_of(order).launch(
        kernel_name("group_by_expert"),
        (1, 1, 1),
        1024,
        12 * (num_experts + 1),
        order,
        tiles,
        chosen,
        *map(c_int, sizes),
    )


@operation("expert_gate_up", "out")
def expert_gate_up(
    out: Tensor,
    x: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    top_k: int,
    tile_rows: int,
    parts: int,
    activation: int,
    limit: float,
    alpha: float,
    offset: float,
) -> None:
    """Compute the first layer of each pair's expert and its gate or activation.

    Args:
        out: `[P, I]`, in the order of experts.
        x: `[T, H]`; rows may be strided.
        weights: `[num_experts, parts * I, H]`.
        biases: `[num_experts, parts * I]`.
        order: int32 `[P]`, from `group_by_expert`.
        tiles: int32 `[max_tiles, 3]`, likewise.
        top_k: Pairs of a token.
        tile_rows: One of `EXPERT_ROWS`.
        parts: See `ExpertGate`, like the next four.
        activation: Index into `ACTIVATIONS`.
        limit: Bound of gates and ups.
        alpha: Factor of a gate before its sigmoid.
        offset: Added to ups.
    """
    inner, hidden = out.shape[1], x.shape[1]
    launcher_of(out).launch(
        kernel_name("expert_gate_up", out.dtype, tile_rows),
        (tiles.shape[0], -(-parts * inner // _gemm_columns(tile_rows)), 1),
        128,
        gemm_shared_bytes(tile_rows),
        out,
        x,
        weights,
        biases,
        order,
        tiles,
        c_longlong(x.stride(0)),
        *map(c_int, (hidden, inner, top_k, parts, activation)),
        *map(c_float, (limit, alpha, offset)),
    )


@operation("expert_down", "out")
def expert_down(
    out: Tensor,
    inner_rows: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    tile_rows: int,
) -> None:
    """Compute the second layer of each pair's expert.

    Args:
        out: `[P, H]`, in the order of tokens.
        inner_rows: `[P, I]`, in the order of experts.
        weights: `[num_experts, H, I]`.
        biases: `[num_experts, H]`.
        order: int32 `[P]`, from `group_by_expert`.
        tiles: int32 `[max_tiles, 3]`, likewise.
        tile_rows: One of `EXPERT_ROWS`.
    """
    hidden, inner = out.shape[1], inner_rows.shape[1]
    launcher_of(out).launch(
        kernel_name("expert_down", out.dtype, tile_rows),
        (tiles.shape[0], -(-hidden // _gemm_columns(tile_rows)), 1),
        128,
        gemm_shared_bytes(tile_rows),
        out,
        inner_rows,
        weights,
        biases,
        order,
        tiles,
        c_int(hidden),
        c_int(inner),
    )


@operation("sum_experts", "out")
def sum_experts(out: Tensor, outputs: Tensor, weights: Tensor, top_k: int) -> None:
    """Write the weighted sum of each token's `outputs` `[T * top_k, H]` to `out` `[T, H]`."""
    num_tokens, hidden = out.shape
    launcher_of(out).launch(
        kernel_name("sum_experts", out.dtype),
        (num_tokens, -(-hidden // (256 * 16 // out.itemsize)), 1),
        256,
        0,
        out,
        outputs,
        weights,
        c_int(hidden),
        c_int(top_k),
    )
