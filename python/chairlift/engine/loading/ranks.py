"""Loads the part of a model that one rank computes, and says what ranks do not support."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from chairlift.api.choices import ModelImpl
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.api.machine import available_cores
from chairlift.attention.backend import AttentionBackend
from chairlift.engine.loading.devices import (
    ResolvedDevice,
    gpu_unsupported_reason,
    load_kernels,
    resolve_device,
)
from chairlift.engine.loading.loaded import OnProgress
from chairlift.engine.loading.rank_hosts import check_hosts
from chairlift.engine.loading.requirement import Requirement, unmet
from chairlift.engine.ranks import lead
from chairlift.engine.ranks.adapters import LeadAdapters
from chairlift.engine.ranks.device_gather import DeviceGather
from chairlift.engine.ranks.lead import LeadTransformer, Ranks, RankSettings
from chairlift.engine.ranks.segment import Scratch
from chairlift.kernels.cuda.device import Accelerator
from chairlift.kernels.cuda.limits import LIMITS as CUDA_LIMITS
from chairlift.model.config import ModelConfig
from chairlift.model.forward.transformer import Transformer
from chairlift.model.lora.tables import AdapterTables
from chairlift.model.memory.plan import MemoryPlan
from chairlift.model.parts.gather import Gather
from chairlift.model.parts.recurrent import States, allocate_states, num_states
from chairlift.model.specs.share import widest_gather
from chairlift.model.weights.gathered import layer_gathers
from chairlift.model.weights.layers import load_weights

_WIDEST_NUMBER = 4

AnyTransformer = TypeVar("AnyTransformer", bound=Transformer)


def rank_threads(config: EngineConfig) -> int:
    """Return the threads of each rank: together those of the settings, at least one."""
    num_threads = config.num_threads or available_cores()
    return max(1, num_threads // config.num_local_ranks)


def of_rank(config: ModelConfig, resolved: ResolvedDevice, rank: int = 0) -> ModelConfig:
    """Return the part of a rank; all of the model where there is one rank.

    Raises:
        ConfigError: A setting, or the model, is not supported by several ranks.
    """
    settings = resolved.settings
    check_hosts(settings)
    if settings.tensor_parallel == 1:
        return config
    impl, draft = settings.model_impl, settings.draft
    requirements = (
        Requirement("model_impl", "chairlift", impl, impl is ModelImpl.CHAIRLIFT),
        Requirement("draft", "none", draft, draft is None),
        Requirement("swap_memory", "none", settings.swap_memory, settings.swap_memory is None),
    )
    if (message := unmet(requirements, "with tensor_parallel")) is not None:
        raise ConfigError(message)
    part = config.of_rank(rank, settings.tensor_parallel)
    if resolved.accelerator is not None:
        _check_gpus(config, settings, resolved.accelerator.num_devices)
    return part


def _check_gpus(config: ModelConfig, settings: EngineConfig, num_gpus: int) -> None:
    """Check what ranks on GPUs need beside those on CPUs.

    Raises:
        ConfigError: It is not there.
    """
    num_ranks, listen = settings.tensor_parallel, settings.rank_listen
    requirements = (
        Requirement("rank_listen", "none", listen, listen is None),
        Requirement("tensor_parallel", f"at most {num_gpus}", num_ranks, num_ranks <= num_gpus),
    )
    if (message := unmet(requirements, "on the GPUs of this machine")) is not None:
        raise ConfigError(message)
    hidden, step = config.spec.hidden_size, CUDA_LIMITS.width_step * num_ranks
    parts = (config.of_rank(rank, num_ranks) for rank in range(num_ranks))
    reason = next(filter(None, (gpu_unsupported_reason(settings, part) for part in parts)), None)
    if hidden % step:
        reason = f"hidden_size: expected a multiple of {step}, got {hidden}"
    if reason is not None:
        message = f"{reason}, with tensor_parallel {num_ranks}"
        raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one rank, before its weights are read."""

    folder: Path
    config: ModelConfig
    """The part of the model that the rank computes."""
    resolved: ResolvedDevice
    scratch: Scratch

    @property
    def backend(self) -> AttentionBackend:
        """What stores keys and values."""
        return self.resolved.backend

    @classmethod
    def of(cls, folder: Path, config: ModelConfig, resolved: ResolvedDevice) -> "Part":
        """Take what `of_rank` returned."""
        num_numbers = resolved.settings.max_num_batched_tokens * widest_gather(config.stored_spec)
        scratch = Scratch(num_numbers * _WIDEST_NUMBER, resolved.torch_device)
        return cls(folder, config, resolved, scratch)

    def states(self, num_snapshots: int) -> States | None:
        """Allocate the states of a hybrid, and their snapshots; None for another model."""
        spec, settings = self.config.spec, self.resolved.settings
        if not spec.has_state:
            return None
        return allocate_states(spec, num_states(settings.max_num_seqs) + num_snapshots)

    def transformer(
        self,
        gather: Gather,
        kind: Callable[..., AnyTransformer],
        adapters: AdapterTables | None,
        on_progress: OnProgress | None = None,
    ) -> AnyTransformer:
        """Read the weights.

        Args:
            gather: Meets the other ranks.
            kind: What to make of them.
            adapters: Updates of its layers; None without adapters.
            on_progress: See `load_weights`.

        Raises:
            ModelError: They cannot be read.
        """
        weights = load_weights(
            self.folder,
            self.config,
            on_progress,
            self.resolved.settings.quantize,
            kernels=self.backend.kernels,
            device=self.resolved.torch_device,
            gather=gather,
        )
        share = self.config.share
        assert share is not None, "of a rank"
        gathers = layer_gathers(self.config.stored_spec, share, gather, self.backend.kernels)
        return kind(self.config, weights, self.backend, adapters, gathers)


def load_lead(
    folder: Path,
    config: ModelConfig,
    resolved: ResolvedDevice,
    plan: MemoryPlan,
    on_progress: OnProgress | None,
    rank_module: str,
) -> tuple[Transformer, Ranks]:
    """Read the weights of rank 0; the others start with a runner.

    Raises:
        ModelError: They cannot be read.
    """
    settings, part = resolved.settings, Part.of(folder, config, resolved)
    accelerator = resolved.accelerator
    rank_settings = RankSettings(
        model=str(folder),
        config=settings.model_dump(mode="json", exclude_unset=True),
        max_model_len=config.max_model_len,
        num_blocks=plan.num_blocks,
        num_snapshots=plan.num_state_snapshots,
        num_ranks=settings.tensor_parallel,
        num_local_ranks=settings.num_local_ranks,
        num_threads=rank_threads(settings),
        timeout_s=lead.TIMEOUT_S,
        on_gpus=accelerator is not None,
    )
    devices = None if accelerator is None else DeviceGather(accelerator, part.scratch)
    hosts = settings if settings.rank_listen else None
    ranks = Ranks(rank_settings, part.scratch, hosts, rank_module, devices)
    if devices is not None:
        return part.transformer(devices, Transformer, None, on_progress), ranks
    tables = None
    if num_slots := settings.num_adapter_slots:
        tables = LeadAdapters(config.spec.num_layers, num_slots, ranks)
        ranks.on_begin = tables.restore
    transformer = part.transformer(ranks, LeadTransformer, tables, on_progress)
    transformer.ranks = ranks
    return transformer, ranks


def load_part(
    folder: Path,
    settings: EngineConfig,
    max_model_len: int,
    rank: int,
    accelerator: Accelerator | None = None,
) -> Part:
    """Return the part of another rank than 0, from the settings that rank 0 resolved.

    Args:
        folder: The model.
        settings: Those of the engine.
        max_model_len: Tokens of a sequence.
        rank: Number of the rank.
        accelerator: Its GPU; None is the CPU.

    Raises:
        ModelError: The configuration cannot be read.
        ConfigError: The part does not fit the GPU.
    """
    config = ModelConfig.load(folder, settings.dtype)
    config = replace(config, max_model_len=max_model_len)
    resolved = resolve_device(settings, config, accelerator)
    config = load_kernels(resolved, of_rank(config, resolved, rank))
    return Part.of(folder, config, resolved)
