"""Which device an engine runs on, and what its settings are there."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from chairlift.api.choices import ModelImpl
from chairlift.api.config import Device, Drafts, Dtype, EngineConfig, KvCacheDtype, Quantize
from chairlift.api.errors import ConfigError
from chairlift.attention.backend import AttentionBackend
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cpu_int8 import Int8CpuBackend
from chairlift.attention.cuda import CudaBackend
from chairlift.attention.cuda_fp8 import Fp8CudaBackend
from chairlift.engine.loading.requirement import Requirement, unmet
from chairlift.kernels.cuda.device import Accelerator, CudaDevice
from chairlift.kernels.cuda.experts import MAX_EXPERTS, MAX_TOP_K
from chairlift.kernels.cuda.limits import LIMITS as CUDA_LIMITS
from chairlift.kernels.cuda.ops import rotary_step
from chairlift.kernels.cuda.recurrent_ops import holds_state
from chairlift.kernels.cuda.requirements import Gpu, installed_gpu, machine_unsupported_reason
from chairlift.kernels.cuda.sources import ModelKernels
from chairlift.model.config import ModelConfig
from chairlift.model.specs.layer_parts import Attention, Experts
from chairlift.model.specs.model_spec import ModelSpec
from chairlift.model.specs.recurrence import Recurrent, ShortConv

logger = logging.getLogger(__name__)

GPU_DEFAULTS = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "steps_in_flight": 2,
    "drafts": Drafts.OFF,
}
"""Defaults on a GPU, for settings that are not set."""


@dataclass(frozen=True, slots=True)
class ResolvedDevice:
    """Where a model runs."""

    settings: EngineConfig
    """With the defaults of the device."""
    backend: AttentionBackend
    accelerator: Accelerator | None
    """None is the CPU."""
    free_bytes: int | None = None
    """Free memory of the accelerator before the model was read."""

    @property
    def torch_device(self) -> torch.device:
        """Where the weights are."""
        return torch.device("cpu") if self.accelerator is None else self.accelerator.device


def resolve_device(
    settings: EngineConfig,
    model: ModelConfig,
    accelerator: Accelerator | None = None,
    find_gpu: Callable[[], Gpu | None] = installed_gpu,
) -> ResolvedDevice:
    """Return the device of a model.

    Args:
        settings: `device` says which; auto is a GPU if there is one that can run the model.
        model: Computes in what the settings say.
        accelerator: The GPU to use; None looks for one.
        find_gpu: Describes the one that the machine has.

    Raises:
        ConfigError: There is no GPU, or it cannot run the model, and the settings ask for one.
    """
    check_snapshots(settings, model.spec)
    if settings.model_impl is ModelImpl.TRANSFORMERS:
        _check_generic(settings)
    gpu: Gpu | None = None
    unsupported_reason: str | None = "device: the settings say cpu"
    if settings.device is not Device.CPU:
        unsupported_reason = None
        if accelerator is None:
            gpu = find_gpu()
            unsupported_reason = machine_unsupported_reason(gpu)
        unsupported_reason = unsupported_reason or gpu_unsupported_reason(settings, model)
    if unsupported_reason is None:
        defaults = {
            name: value
            for name, value in GPU_DEFAULTS.items()
            if name not in settings.model_fields_set
        }
        accelerator = accelerator or CudaDevice()
        in_fp8 = settings.kv_cache_dtype is KvCacheDtype.FP8
        settings = settings.model_copy(update=defaults)
        return ResolvedDevice(
            hybrid_settings(settings) if model.spec.has_state else settings,
            (Fp8CudaBackend if in_fp8 else CudaBackend)(accelerator.device),
            accelerator,
            accelerator.free_bytes(),
        )
    if settings.device is Device.CUDA:
        raise ConfigError(unsupported_reason)
    for name, value in (("dtype", Dtype.FLOAT16), ("kv_cache_dtype", KvCacheDtype.FP8)):
        if getattr(settings, name) is value:
            message = f"{name}: {value} is a GPU's alone ({unsupported_reason})"
            raise ConfigError(message)
    if gpu is not None:
        logger.warning("the CPU runs the model although there is a GPU: %s", unsupported_reason)
    if model.spec.has_state:
        settings = hybrid_settings(settings)
    in_int8 = settings.kv_cache_dtype is KvCacheDtype.INT8
    return ResolvedDevice(settings, Int8CpuBackend(model.dtype) if in_int8 else CpuBackend(), None)


HYBRID_SETTINGS: Final = {
    "drafts": Drafts.OFF,
    "draft": None,
    "draft_quantize": None,
    "swap_memory": None,
}
"""What holds for a model with a recurrent state: a row has that after its last token alone."""


def _check_generic(settings: EngineConfig) -> None:
    """Raise ConfigError if a setting asks for what `transformers` does not compute for us."""
    quantize, num_adapters, draft = settings.quantize, settings.num_adapter_slots, settings.draft
    requirements = (
        Requirement("quantize", "none", quantize, quantize is Quantize.NONE),
        Requirement("max_adapters", "0", num_adapters, num_adapters == 0),
        Requirement("draft", "none", draft, draft is None),
    )
    if (message := unmet(requirements, "with --model-impl transformers")) is not None:
        raise ConfigError(message)


def check_snapshots(settings: EngineConfig, spec: ModelSpec) -> None:
    """Check that a request can begin with the snapshots that are to be kept.

    Raises:
        ConfigError: The model has no recurrent states, or there is no prefix cache.
    """
    count, expected = settings.state_snapshots, None
    if count is not None and not spec.has_state:
        expected = "none for a model without recurrent states"
    elif count and not settings.prefix_cache:
        expected = "0 without the prefix cache"
    if expected is not None:
        message = f"state_snapshots: expected {expected}, got {count}"
        raise ConfigError(message)


def hybrid_settings(settings: EngineConfig) -> EngineConfig:
    """Return the settings as they hold for a model with a recurrent state.

    Raises:
        ConfigError: One asks for what such a model does not support.
    """
    state = "for a model with a recurrent state"
    for name, expected in HYBRID_SETTINGS.items():
        value = getattr(settings, name)
        if name in settings.model_fields_set and value not in (expected, None):
            shown = expected or "off"
            message = f"{name}: expected {shown} {state}, got {value}"
            raise ConfigError(message)
    if (num_adapters := settings.num_adapter_slots) > 0:
        message = f"max_adapters: expected 0 {state}, got {num_adapters}"
        raise ConfigError(message)
    return settings.model_copy(update=HYBRID_SETTINGS)


def compute_dtype(settings: EngineConfig, model: ModelConfig) -> torch.dtype:
    """Return the dtype on a GPU: auto is never float32 there."""
    if settings.dtype is Dtype.AUTO and model.dtype == torch.float32:
        return torch.bfloat16
    return model.dtype


def load_kernels(resolved: ResolvedDevice, model: ModelConfig) -> ModelConfig:
    """Return a model as its device computes it, and make the kernels of a GPU ready to launch."""
    if resolved.accelerator is None:
        return model
    # No kernel of a GPU reads the blocks of GGUF files: they are widened.
    model = replace(model, dtype=compute_dtype(resolved.settings, model), quant_types={})
    kv_dtype = resolved.backend.stored_dtype(model.dtype)
    parts = model.spec.head_dims, model.spec.router_size > 0, model.spec.has_state
    resolved.accelerator.load(ModelKernels(model.dtype, kv_dtype, *parts), _log_kernels)
    return model


def _log_kernels(done: int, total: int, name: str) -> None:
    logger.info("kernels %d/%d: %s", done, total, name)


def gpu_unsupported_reason(settings: EngineConfig, model: ModelConfig) -> str | None:
    """Return why the CUDA kernels cannot run a model, naming the field; None if they can."""
    impl, quantize, dtype = settings.model_impl, settings.quantize, settings.dtype
    kv_dtype, num_adapters = settings.kv_cache_dtype, settings.num_adapter_slots
    is_int8 = kv_dtype is KvCacheDtype.INT8
    requirements = (
        Requirement("model_impl", "chairlift", impl, impl is ModelImpl.CHAIRLIFT),
        Requirement("quantize", "none", quantize, quantize is Quantize.NONE),
        Requirement("kv_cache_dtype", "auto or fp8", kv_dtype, not is_int8),
        Requirement("max_adapters", "0", num_adapters, num_adapters == 0),
        Requirement("draft", "none", settings.draft, settings.draft is None),
        Requirement("dtype", "bfloat16 or float16", dtype, dtype is not Dtype.FLOAT32),
    )
    if (message := unmet(requirements, "on a GPU")) is not None:
        return message
    reasons = (CUDA_LIMITS.unsupported_reason(shape, " on a GPU") for shape in model.spec.shapes)
    return next(filter(None, reasons), None) or layer_unsupported_reason(model.spec)


def _expert_checks(experts: Sequence[Experts]) -> tuple[tuple[str, bool], ...]:
    """Return the kinds of experts that no CUDA kernel computes, and whether some are there."""
    step = CUDA_LIMITS.width_step
    return (
        (
            f"experts of no multiple of {step} numbers",
            any(part.intermediate_size % step for part in experts),
        ),
        (f"more than {MAX_EXPERTS} experts", any(part.num > MAX_EXPERTS for part in experts)),
        (
            f"more than {MAX_TOP_K} of them for a token",
            any(part.top_k > MAX_TOP_K for part in experts),
        ),
    )


def _state_checks(mixers: Sequence[Recurrent]) -> tuple[tuple[str, bool], ...]:
    """Return the recurrent states that no CUDA kernel moves on, and whether some are there."""
    step = CUDA_LIMITS.width_step
    channels = [part.channels if isinstance(part, ShortConv) else part.conv_size for part in mixers]
    heads = [shape[1:] for part in mixers for shape in part.state_shapes[1:]]
    return (
        (f"convolutions of no multiple of {step} channels", any(n % step for n in channels)),
        ("states of such large heads", not all(holds_state(*head) for head in heads)),
    )


def layer_unsupported_reason(spec: ModelSpec) -> str | None:
    """Return the first part of a model that no CUDA kernel computes; None if there is none."""
    attentions = spec.attentions
    widths = [part.intermediate_size for layer in spec.layers if (part := layer.dense) is not None]
    if spec.layer_inputs is not None:
        widths.append(spec.layer_inputs.size)
    step = CUDA_LIMITS.width_step
    checks = (
        *_state_checks([mixer for layer in spec.layers if (mixer := layer.recurrent)]),
        ("layers of one window with different heads", _differs_in_group(attentions)),
        (f"widths that are no multiple of {step}", any(width % step for width in widths)),
        ("RoPE of such a part of a head", any(map(_rotates_odd_part, attentions))),
        *_expert_checks([mixture for layer in spec.layers if (mixture := layer.experts)]),
    )
    found = next((name for name, is_there in checks if is_there), None)
    return None if found is None else f"model: {found} are not supported on a GPU"


def _differs_in_group(attentions: Sequence[Attention]) -> bool:
    """Return whether layers of one KV group would need work lists of their own."""
    kinds = {(part.window, part.num_heads, part.num_kv_heads, part.head_dim) for part in attentions}
    return len(kinds) > len({part.window for part in attentions})


def _rotates_odd_part(attention: Attention) -> bool:
    """Return whether RoPE rotates a number of pairs that lanes do not share evenly."""
    rope, head_dim = attention.rope, attention.head_dim
    return rope is not None and (rope.rotary_dim or head_dim) % rotary_step(head_dim) != 0
