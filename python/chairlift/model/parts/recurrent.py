"""The layers of a hybrid that have a recurrent state, and the memory of their states.

A state belongs to a row of the batch: the kernels begin with zeros where a row's first token is at
position 0, so that no request finds what another left. Each token is one step of the recurrence,
in a chunk of a prompt as in a decode: the bits do not depend on how a prompt is cut.

Behind the rows lie snapshots, with which requests begin that share the beginning of a prompt; the
scheduler says which state is copied where.
"""

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chairlift.attention.backend import zeroed
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import Kernels, cpu
from chairlift.kernels.interface import DeltaRules, ScanRules
from chairlift.model.parts.buffers import Buffers
from chairlift.model.parts.gather import WholeRows
from chairlift.model.parts.weights import RecurrentWeights
from chairlift.model.specs.model_spec import ModelSpec
from chairlift.model.specs.recurrence import GatedDelta, Mamba2, Recurrent, ShortConv

if TYPE_CHECKING:
    from chairlift.api.config import EngineConfig

LayerStates = tuple[Tensor, ...]
"""The states of one layer, float32 `[rows, ...]`; a layer with attention has none."""
States = tuple[LayerStates, ...]
"""The states of each layer of a model."""


def num_states(max_num_seqs: int) -> int:
    """Return the rows with a state: those of the batch, then the one of a probe."""
    return max_num_seqs + 1


_SNAPSHOTS_PER_ROW = 4
"""At most, unless the settings say more: for conversations that wait for their next turn."""
_MIN_SNAPSHOTS = 8
_SHARE_OF_KV_CACHE = 0.25


def plan_snapshots(settings: "EngineConfig", spec: ModelSpec, kv_cache_bytes: int) -> int:
    """Return the number of snapshots: what is useful, in a share of the KV cache."""
    if not spec.has_state or not settings.prefix_cache:
        return 0
    if settings.state_snapshots is not None:
        return settings.state_snapshots
    fit = int(_SHARE_OF_KV_CACHE * kv_cache_bytes) // state_bytes(spec, 1)
    return max(_MIN_SNAPSHOTS, min(fit, _SNAPSHOTS_PER_ROW * settings.max_num_seqs))


def kv_share(settings: "EngineConfig", spec: ModelSpec, num_bytes: int) -> int:
    """Return what of the memory for keys, values and states is that of keys and values."""
    if not spec.has_state:
        return num_bytes
    left = num_bytes - state_bytes(spec, num_states(settings.max_num_seqs))
    if settings.prefix_cache and settings.state_snapshots is None:
        # The snapshots that `plan_snapshots` will take.
        max_bytes = state_bytes(spec, _SNAPSHOTS_PER_ROW * settings.max_num_seqs)
        fit = int(left * _SHARE_OF_KV_CACHE / (1 + _SHARE_OF_KV_CACHE))
        left -= max(state_bytes(spec, _MIN_SNAPSHOTS), min(fit, max_bytes))
    else:
        left -= state_bytes(spec, plan_snapshots(settings, spec, 0))
    return max(0, left)


def copy_states(states: States, moves: Tensor) -> None:
    """Copy the states of all layers.

    Args:
        states: The states of all rows.
        moves: int32 `[N, 2]`: the target row and the source row of each move. No row is the target
            of two moves, and no target is a source.
    """
    if len(moves) == 0:
        return
    for layer in states:
        for state in layer:
            cpu.copy_states(state, moves)


def allocate_states(spec: ModelSpec, num_rows: int) -> States:
    """Allocate the states of so many rows; the system provides a page when it is first written."""
    return tuple(
        tuple(zeroed(num_rows, *shape, 4).view(torch.float32).squeeze(-1) for shape in shapes)
        for shapes in _state_shapes(spec)
    )


def allocate_state_pool(spec: ModelSpec, num_rows: int, device: torch.device) -> Tensor:
    """Allocate float32 `[num_rows, numbers]` on a device: a row is one run, for one copy."""
    numbers = state_bytes(spec, 1) // torch.float32.itemsize
    return torch.zeros(num_rows, numbers, dtype=torch.float32, device=device)


def cut_states(spec: ModelSpec, pool: Tensor) -> States:
    """Return the states that lie in a pool, layer after layer; their rows are strided.

    Args:
        spec: The model.
        pool: float32 `[num_rows, numbers]`, from `allocate_state_pool`.
    """
    begin, states = 0, []
    for shapes in _state_shapes(spec):
        layer_states = []
        for shape in shapes:
            end = begin + prod(shape)
            layer_states.append(pool[:, begin:end].view(len(pool), *shape))
            begin = end
        states.append(tuple(layer_states))
    return tuple(states)


def state_bytes(spec: ModelSpec, num_rows: int) -> int:
    """Return the bytes of the states of so many rows."""
    numbers = sum(prod(shape) for shapes in _state_shapes(spec) for shape in shapes)
    return num_rows * numbers * torch.float32.itemsize


def _state_shapes(spec: ModelSpec) -> list[tuple[tuple[int, ...], ...]]:
    recurrent = (layer.recurrent for layer in spec.layers)
    return [() if mixer is None else mixer.state_shapes for mixer in recurrent]


class RecurrentMixer:
    """What mixes tokens by a recurrent state."""

    def __init__(
        self,
        spec: Recurrent,
        weights: RecurrentWeights,
        kernels: Kernels,
        whole: WholeRows | None = None,
    ) -> None:
        """Take the weights of a layer.

        Args:
            spec: The mixer.
            weights: Its weights.
            kernels: Those of the device.
            whole: Rows of the results of all ranks, where these are normed together.
        """
        self.spec = spec
        self._whole = whole
        self._project = weights.projection
        self._weights = weights
        self._kernels = kernels

    def __call__(
        self, inputs: Tensor, batch: AttentionMetadata, states: LayerStates, buffers: Buffers
    ) -> None:
        """Write what the layer makes of each token to `buffers.mixed`.

        Args:
            inputs: `[T, H]`.
            batch: The rows of the tokens.
            states: The states of the layer; updated in place.
            buffers: The buffers of the forward pass.
        """
        spec, out = self.spec, self.mixed(buffers)
        projected = buffers.projected[:, : spec.projected_size]
        if isinstance(spec, ShortConv):
            self._project(inputs, out=projected)
            *gates, x = torch.split(projected, spec.channels, dim=1)
            self._convolve(x, batch, states[0], out, gates=(gates[0], gates[1]))
        elif isinstance(spec, Mamba2):
            self._scan(spec, inputs, projected, batch, states, buffers)
        else:
            self._delta(spec, inputs, projected, batch, states, buffers)

    def output(self, buffers: Buffers) -> None:
        """Map what was computed to an update of the stream."""
        self._weights.mixed_output(self.mixed(buffers), out=buffers.update)

    def mixed(self, buffers: Buffers) -> Tensor:
        """Return the result of the layer, `[T, mixed_size]`."""
        return buffers.mixed[:, : self.spec.mixed_size]

    def _delta(
        self,
        spec: GatedDelta,
        inputs: Tensor,
        projected: Tensor,
        batch: AttentionMetadata,
        states: LayerStates,
        buffers: Buffers,
    ) -> None:
        weights = self._weights
        sizes = [spec.conv_size, spec.value_size, 2 * spec.num_value_heads]
        x, gate, beta_alpha = torch.split(projected, sizes, dim=1)
        self._project(inputs, out=projected[:, : -sizes[-1]])
        assert weights.beta_alpha is not None, "of this kind of layer"
        weights.beta_alpha(inputs, out=beta_alpha)
        convolved = buffers.convolved[:, : spec.conv_size]
        self._convolve(x, batch, states[0], convolved, has_silu=True)
        assert weights.rate is not None, "of this kind of layer"
        assert weights.dt_bias is not None, "of this kind of layer"
        assert weights.state_norm is not None, "of this kind of layer"
        numbers = weights.rate, weights.dt_bias, weights.state_norm
        rules = DeltaRules(*numbers, spec.norm_eps, spec.max_beta, spec.interleaved_heads)
        out = self.mixed(buffers)
        self._kernels.gated_delta(convolved, gate, beta_alpha, rules, states[1], batch, out)

    def _scan(
        self,
        spec: Mamba2,
        inputs: Tensor,
        projected: Tensor,
        batch: AttentionMetadata,
        states: LayerStates,
        buffers: Buffers,
    ) -> None:
        weights, out = self._weights, self.mixed(buffers)
        self._project(inputs, out=projected)
        parts = torch.split(projected, spec.part_sizes, dim=1)
        for part, multiplier in zip(parts, spec.multipliers, strict=True):
            if multiplier != 1.0:
                self._kernels.scale(part, multiplier)
        sizes = [spec.inner_size, spec.conv_size, spec.num_heads]
        gate, x, dt = torch.split(projected, sizes, dim=1)
        convolved = buffers.convolved[:, : spec.conv_size]
        self._convolve(x, batch, states[0], convolved, has_silu=True)
        assert weights.rate is not None, "of this kind of layer"
        assert weights.dt_bias is not None, "of this kind of layer"
        assert weights.skip is not None, "of this kind of layer"
        rules = ScanRules(weights.rate, weights.dt_bias, weights.skip)
        kernels, groups = self._kernels, spec.num_groups
        kernels.selective_scan(convolved, dt, rules, groups, states[1], batch, out)
        norm = weights.state_norm, spec.norm_size, spec.norm_eps
        if self._whole is None:
            kernels.gated_rms_norm(out, gate, *norm)
            return
        gates = self._whole.of(gate, is_input=False)
        self._whole.change(out, lambda rows: kernels.gated_rms_norm(rows, gates, *norm))

    def _convolve(
        self,
        x: Tensor,
        batch: AttentionMetadata,
        state: Tensor,
        out: Tensor,
        *,
        gates: tuple[Tensor, Tensor] | None = None,
        has_silu: bool = False,
    ) -> None:
        weight, bias = self._weights.conv, self._weights.conv_bias
        self._kernels.causal_conv(
            x, weight, state, batch, out, bias=bias, gates=gates, has_silu=has_silu
        )
