"""The interface between a model and the kernels of a device."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class LinearLayer(Protocol):
    """A linear layer whose weights are laid out for its kernels."""

    @property
    def in_features(self) -> int:
        """Inputs."""

    @property
    def out_features(self) -> int:
        """Outputs."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are stored."""

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`, `[T, out_features]`.

        Args:
            x: `[T, in_features]`.
            out_dtype: float32 for the logits of a 16-bit model; else the dtype of `x`.
            out: Where the result goes.
        """


class ExpertRules(Protocol):
    """How experts are chosen and weighed, as `Experts` of a model's specification has it."""

    @property
    def top_k(self) -> int:
        """Experts of a token."""

    @property
    def scores(self) -> str:
        """What weighs an expert: `softmax` over all, `softmax_of_chosen` or `sigmoid`."""

    @property
    def activation(self) -> str:
        """The activation between both layers of an expert."""

    @property
    def limit(self) -> float | None:
        """The bound of gates from above and of ups from both sides; None clamps nothing.

        With a limit an expert computes `(up + 1) * gate * sigmoid(alpha * gate)`.
        """

    @property
    def alpha(self) -> float:
        """Factor of a gate before its sigmoid, where there is a limit."""

    @property
    def min_weight_sum(self) -> float | None:
        """The weights of a token are divided by their sum, which is at least this."""

    @property
    def multiplier(self) -> float:
        """Multiplies the weights after that."""

    @property
    def gated(self) -> bool:
        """Whether an expert has a gate beside its first layer."""

    @property
    def intermediate_size(self) -> int:
        """Numbers between the layers of an expert."""


class ExpertLayers(Protocol):
    """A mixture of experts, packed."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights of all experts."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace per token; 0 where the kernels allocate what they need."""

    def __call__(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:
        """Write what the chosen experts compute of `x` `[T, H]`, weighed and summed.

        Args:
            x: `[T, H]`, contiguous.
            logits: float32 `[T, num_experts]`, of the router.
            out: `[T, H]`.
            workspace: uint8 `[T, workspace_bytes]` or wider, contiguous; its bytes mean nothing.
        """


@runtime_checkable
class SplitExpertLayers(ExpertLayers, Protocol):
    """A mixture of experts of which ranks share the columns of both layers."""

    @property
    def inner_dtype(self) -> torch.dtype:
        """The dtype of the numbers between the layers."""

    def inside(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:
        """Write the numbers between both layers, before `outside` of the same workspace.

        Args:
            x: `[T, H]`, contiguous.
            logits: float32 `[T, num_experts]`, of the router.
            out: `[T * top_k, part of I]`, token after token, in the same order on all ranks.
            workspace: See `ExpertLayers`.
        """

    def outside(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:
        """Write the weighed sums of the second layers, `[T, part of H]`.

        Args:
            x: `[T * top_k, I]`, which all ranks wrote.
            logits: Those of `inside`.
            out: `[T, part of H]`, contiguous.
            workspace: What `inside` left there.
        """


class RaggedBatch(Protocol):
    """The tokens of a step, as `AttentionMetadata` has them; int32."""

    @property
    def rows(self) -> Tensor:
        """`[R]`: the row of the state that each row of the batch has."""

    @property
    def query_start_loc(self) -> Tensor:
        """`[R + 1]`: where each row's tokens start."""

    @property
    def seq_lens(self) -> Tensor:
        """`[R]`: tokens of each row after the step."""


class DeltaRules(NamedTuple):
    """What the heads of the gated delta rule have beside their inputs; float32."""

    rate: Tensor
    """`[num_value_heads]`: the decay is `e^(-rate * softplus(a + dt_bias))`."""
    dt_bias: Tensor
    """`[num_value_heads]`"""
    norm_weight: Tensor
    """`[value_dim]`: of the norm of an output."""
    eps: float
    """Added to the mean of the squares in that norm."""
    max_beta: float = 1.0
    """The largest share of a correction that is made."""
    interleaved_heads: bool = False
    """Value head n has key head `n % num_key_heads`; else neighbours have the same one."""


class ScanRules(NamedTuple):
    """What the heads of a selective scan have beside their inputs; float32 `[num_heads]` each."""

    rate: Tensor
    """The decay is `e^(-rate * softplus(dt + dt_bias))`."""
    dt_bias: Tensor
    skip: Tensor
    """What is added of an input itself."""


class Kernels(Protocol):
    """The kernels of a device; a module can be one. An output is allocated unless `out` is given.

    Shapes: T tokens, H numbers of each.
    """

    def linear(
        self, weight: Tensor, bias: Tensor | None = None, quantize: str | None = None
    ) -> LinearLayer:
        """Make a layer of `weight` `[out_features, in_features]` and `bias` `[out_features]`."""

    @property
    def linear_from_blocks(self) -> Callable[[Tensor, str, Tensor | None, torch.dtype], Any] | None:
        """A layer of blocks as a GGUF file holds them; None where no kernel reads them.

        Arguments: the blocks, uint8 `[out_features, bytes of a row]`; their type; the bias, float32
        `[out_features]`; the dtype of inputs and outputs.
        """

    def experts(
        self,
        gate_up: Sequence[LinearLayer],
        down: Sequence[LinearLayer],
        rules: ExpertRules,
        choice_bias: Sequence[float] | None = None,
        factors: Sequence[float] | None = None,
    ) -> ExpertLayers:
        """Make a mixture of experts.

        Args:
            gate_up: The first layer of each expert, from H to gate and up, side by side.
            down: The second layer of each expert, from I to H.
            rules: How experts are chosen.
            choice_bias: A number for each expert, added to its score for the choice alone.
            factors: A factor for the weight of each expert.
        """

    def expert_bytes(self, rules: ExpertRules, hidden_size: int, dtype: torch.dtype) -> int:
        """Return the bytes that a mixture takes per token beside its arguments."""

    def linear_bytes(
        self, out_features: int, in_features: int, dtype: torch.dtype, weight_format: str | None
    ) -> int:
        """Return the bytes of such a layer."""

    def select_rows(self, x: Tensor, rows: Tensor, out: Tensor, multiplier: float = 1.0) -> None:
        """Write `multiplier * x[rows]`; `x` `[N, ...]`, `rows` int32 `[T]`, `out` `[T, ...]`."""

    def add_scaled(self, x: Tensor, update: Tensor, multiplier: float = 1.0) -> None:
        """Add `multiplier * update` to `x` in place, both `[T, H]`."""

    def scale(self, x: Tensor, multiplier: float = 1.0, soft_cap: float | None = None) -> None:
        """Multiply `x` `[T, W]` in place, then make it `soft_cap * tanh(x / soft_cap)` if given.

        Rows may be strided.
        """

    def gate_by_sigmoid(self, x: Tensor, gate: Tensor) -> None:
        """Multiply `x` `[T, W]` in place by the sigmoid of `gate` `[T, W]`, or float32 `[T, 1]`."""

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        state: Tensor,
        batch: RaggedBatch,
        out: Tensor,
        *,
        bias: Tensor | None = None,
        gates: tuple[Tensor, Tensor] | None = None,
        has_silu: bool = False,
    ) -> None:
        """Convolve each channel of `x` `[T, C]` along the tokens of its row.

        Args:
            x: Rows may be strided.
            weight: float32 `[K, C]`, that of the oldest input first.
            state: float32 `[rows, K - 1, C]`: the last inputs of each row; updated in place.
            batch: The rows of the tokens.
            out: `[T, C]`.
            bias: float32 `[C]`.
            gates: Factors of inputs and of outputs, `[T, C]` each.
            has_silu: Whether an output `y` becomes `silu(y)`, before its gate.
        """

    def gated_delta(
        self,
        qkv: Tensor,
        gate: Tensor,
        beta_alpha: Tensor,
        rules: DeltaRules,
        state: Tensor,
        batch: RaggedBatch,
        out: Tensor,
    ) -> None:
        """Compute the gated delta rule of each head along the tokens of its row.

        Args:
            qkv: `[T, ...]`: queries, keys and values of all heads, convolved.
            gate: `[T, num_value_heads * value_dim]`.
            beta_alpha: `[T, 2 * num_value_heads]`: shares, then decays.
            rules: The layer's.
            state: float32 `[rows, num_value_heads, key_dim, value_dim]`; updated in place.
            batch: The rows of the tokens.
            out: `[T, num_value_heads * value_dim]`.
        """

    def selective_scan(
        self,
        xbc: Tensor,
        dt: Tensor,
        rules: ScanRules,
        num_groups: int,
        state: Tensor,
        batch: RaggedBatch,
        out: Tensor,
    ) -> None:
        """Compute the selective scan of each head along the tokens of its row.

        Args:
            xbc: `[T, ...]`: x of all heads, B and C of all groups, convolved.
            dt: `[T, num_heads]`.
            rules: The layer's.
            num_groups: Heads of a group share B and C.
            state: float32 `[rows, num_heads, state_dim, head_dim]`; updated in place.
            batch: The rows of the tokens.
            out: `[T, num_heads * head_dim]`.
        """

    def gated_rms_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor | None, group_size: int, eps: float
    ) -> None:
        """Replace `x` by `x * silu(gate)`, or by the RMS norm of that.

        Args:
            x: `[T, W]`; rows may be strided.
            gate: `[T, W]`; rows may be strided.
            weight: float32 `[W]`; None norms nothing.
            group_size: Numbers that are normed together.
            eps: Added to the mean of the squares.
        """

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        out: Tensor | None = None,
        offset: float = 0.0,
    ) -> Tensor:
        """Return `x / rms(x) * (weight + offset)` over the last axis; `x` `[T, H]`.

        `weight` is `[H]`; with `[D]` each D numbers of a row are a norm of their own.
        """

    def add_rms_norm(
        self,
        x: Tensor,
        update: Tensor,
        weight: Tensor,
        eps: float,
        out: Tensor | None = None,
        offset: float = 0.0,
    ) -> Tensor:
        """Add `update` to `x` in place, both `[T, H]`; return the norm of the sum, `[T, H]`."""

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return `(x - mean(x)) / deviation(x) * weight + bias`; `x` `[T, H]`, the others `[H]`."""

    def add_layer_norm(
        self,
        x: Tensor,
        update: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """Add `update` to `x` in place, both `[T, H]`; return the norm of the sum, `[T, H]`."""

    def activate(self, x: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
        """Return an activation of `x` `[T, I]`: `silu`, `gelu` (by erf), `gelu_tanh` or `relu2`."""

    def activate_mul(
        self,
        gate_up: Tensor,
        activation: str,
        out: Tensor | None = None,
        up: Tensor | None = None,
    ) -> Tensor:
        """Return `activation(gate) * up`, `[T, I]`; `gate_up` `[T, 2 I]` holds both.

        Where there is `up` `[T, I]`, `gate_up` `[T, I]` holds the gates alone.
        """
