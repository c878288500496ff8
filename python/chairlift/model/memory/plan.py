"""The memory of a model by part, computed before a weight is read.

```text
weights       what `load_weights` packs, and the tables of RoPE
KV cache      one pool of blocks
activations   the largest step: the buffers of every token of the budget, every row's logits
states        recurrent states of all rows, of a hybrid, and their snapshots
adapters      as many as there may be (LoRA), each of the largest rank and of all linear layers
draft         weights, KV cache and activations of the draft model
swap          blocks of preempted requests, in host memory also where the model is on a GPU
```
"""

from dataclasses import dataclass

import torch

from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.api.machine import memory_limit
from chairlift.attention.backend import AttentionBackend
from chairlift.kernels import Kernels
from chairlift.kernels.cuda.device import pinned_bytes
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import kv_bytes_per_block, plan_blocks, plan_host_blocks
from chairlift.model.lora.load import adapter_bytes
from chairlift.model.parts.buffers import buffer_bytes
from chairlift.model.parts.recurrent import kv_share, num_states, plan_snapshots, state_bytes
from chairlift.model.specs.share import widest_gather
from chairlift.model.weights.layers import stream_dtype
from chairlift.model.weights.sizes import WeightSizes

_FLOAT32 = 4
_DEDICATED_FRACTION = 0.9
"""The rest is a reserve for the driver, the libraries and recorded launches."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one model under one configuration."""

    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    block_bytes: int
    """Bytes of one KV block, all its layers included."""
    num_blocks: int
    """Blocks of the KV cache, the null block included."""
    active_weight_bytes: int = 0
    """Bytes of the weights that a token uses: those of some experts only, in a mixture."""
    swap_bytes: int = 0
    """Bytes of host memory for blocks of preempted requests."""
    num_host_blocks: int = 0
    adapter_bytes: int = 0
    """Bytes of all adapters that may be loaded at a time."""
    state_bytes: int = 0
    """Bytes of the recurrent states of all rows, and of their snapshots."""
    num_state_snapshots: int = 0
    draft_bytes: int = 0
    """Bytes of the draft model: weights, KV cache and activations."""
    is_dedicated: bool = False
    """Swapped blocks are in host memory, everything else in the device's own."""

    @property
    def total_bytes(self) -> int:
        """Memory where the model is; the process uses some hundred megabytes beside."""
        swap_bytes = 0 if self.is_dedicated else self.swap_bytes
        always = self.weight_bytes + self.kv_cache_bytes + self.activation_bytes
        return always + self.adapter_bytes + self.state_bytes + self.draft_bytes + swap_bytes

    def check(self, memory: int | None = None, host_memory: int | None = None) -> None:
        """Check that the plan fits into the memory.

        Args:
            memory: Bytes that the model may use where it is; None asks the system.
            host_memory: Bytes this process may use beside a device's; None asks the system.

        Raises:
            ConfigError: The plan, or its host memory for swapped blocks, is larger than the memory.
        """
        limit = memory_limit() if memory is None else memory
        if self.total_bytes > limit:
            has_swap = self.swap_bytes > 0 and not self.is_dedicated
            swap = f", swap {self.swap_bytes}" if has_swap else ""
            settings = "kv_cache_memory, swap_memory" if has_swap else "kv_cache_memory"
            if self.adapter_bytes > 0:
                swap += f", adapters {self.adapter_bytes}"
                settings += ", max_adapters"
            if self.state_bytes > 0:
                swap += f", recurrent states {self.state_bytes}"
                settings += ", max_num_seqs, state_snapshots"
            if self.draft_bytes > 0:
                swap += f", draft model {self.draft_bytes}"
            message = (
                f"memory: expected at most {limit} bytes (all that this process may use), got"
                f" {self.total_bytes}: weights {self.weight_bytes}, KV cache"
                f" {self.kv_cache_bytes}, activations {self.activation_bytes}{swap}; lower"
                f" {settings} or max_num_batched_tokens"
            )
            raise ConfigError(message)
        limit = memory_limit() if host_memory is None else host_memory
        if self.swap_bytes > limit:
            message = (
                f"swap_memory: expected at most {limit} bytes (all that this process may use), got"
                f" {self.swap_bytes}"
            )
            raise ConfigError(message)


def plan_memory(
    settings: EngineConfig,
    model: ModelConfig,
    backend: AttentionBackend,
    memory: int | None = None,
    *,
    is_dedicated: bool = False,
) -> MemoryPlan:
    """Return the plan of a model.

    Args:
        settings: The engine's.
        model: The model's.
        backend: Knows the size of a block.
        memory: Bytes this process may use; None asks the system.
        is_dedicated: The memory is for this model alone: the cache takes what weights and
            activations leave of nine tenths of it.

    Raises:
        ConfigError: The KV cache does not hold one block per group beside the null block, or the
            memory for swapped blocks none.
    """
    sizes = WeightSizes(model, settings.quantize, backend.kernels)
    weights = sizes.total()
    stream = stream_dtype(model, settings.quantize, backend.kernels)
    activation_bytes = _activation_bytes(settings, model, stream, backend.kernels)
    if is_dedicated and model.share is not None:
        activation_bytes += _gather_bytes(settings, model)
    if is_dedicated and memory is not None:
        left = max(0, int(memory * _DEDICATED_FRACTION) - weights - activation_bytes)
        left = kv_share(settings, model.spec, left)
        num_blocks = plan_blocks(settings, model, backend, left, fraction=1.0)
    else:
        num_blocks = plan_blocks(settings, model, backend, memory)
    block_bytes = kv_bytes_per_block(model, backend, settings.block_size)
    num_host_blocks = plan_host_blocks(settings, model, backend)
    swap_bytes = num_host_blocks * block_bytes
    num_snapshots = plan_snapshots(settings, model.spec, num_blocks * block_bytes)
    num_states_in_all = num_states(settings.max_num_seqs) + num_snapshots
    return MemoryPlan(
        weight_bytes=weights,
        active_weight_bytes=weights - sizes.unused_experts(),
        kv_cache_bytes=num_blocks * block_bytes,
        activation_bytes=activation_bytes,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        swap_bytes=pinned_bytes(swap_bytes) if is_dedicated else swap_bytes,
        num_host_blocks=num_host_blocks,
        adapter_bytes=_adapter_bytes(settings, model),
        state_bytes=state_bytes(model.spec, num_states_in_all),
        num_state_snapshots=num_snapshots,
        is_dedicated=is_dedicated,
    )


def _gather_bytes(settings: EngineConfig, model: ModelConfig) -> int:
    """Return the bytes of what ranks gather on a GPU: two layers' scratch, and what is sent."""
    num_tokens = settings.max_num_batched_tokens
    num_rows = min(settings.max_num_seqs, num_tokens)
    of_layers = num_tokens * widest_gather(model.stored_spec)
    return (4 * of_layers + 2 * num_rows * model.spec.vocab_size) * _FLOAT32


def _adapter_bytes(settings: EngineConfig, model: ModelConfig) -> int:
    num_slots = settings.num_adapter_slots
    return num_slots * adapter_bytes(model, settings.max_adapter_rank) if num_slots else 0


def _activation_bytes(
    settings: EngineConfig, model: ModelConfig, stream: torch.dtype, kernels: Kernels
) -> int:
    num_tokens = settings.max_num_batched_tokens
    num_rows = min(settings.max_num_seqs, num_tokens)
    logits = num_rows * model.spec.vocab_size * _FLOAT32
    buffers = buffer_bytes(model.spec, num_tokens, model.dtype, stream)
    experts = (mixture for layer in model.spec.layers if (mixture := layer.experts) is not None)
    hidden = model.spec.hidden_size
    inside = max(
        (kernels.expert_bytes(mixture, hidden, model.dtype) for mixture in experts), default=0
    )
    return buffers + logits + num_tokens * inside
