"""The engine's settings: frozen, validated once, never changed after."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chairlift.errors import ConfigError

Config = TypeVar("Config", bound=BaseModel)


class Batching(StrEnum):
    """When a waiting request may first join the batch."""

    CONTINUOUS = "continuous"
    DYNAMIC = "dynamic"
    STATIC = "static"


class Dtype(StrEnum):
    """Element type of weights, activations and KV cache; auto is the checkpoint's."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Quantize(StrEnum):
    """How the weights of linear layers are stored; none is as the element type."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"


class EngineConfig(BaseModel):
    """Settings of `Engine` and `AsyncEngine`; each is also an option of `chairlift serve`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batching: Batching = Batching.CONTINUOUS
    """Admission policy."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Requests of a full static or dynamic batch; None is max_num_seqs."""
    batch_window_s: Annotated[float, Field(ge=0)] = 0.05
    """Dynamic: the oldest waiting request waits at most this long for a full batch."""
    batch_timeout_s: Annotated[float, Field(ge=0)] = 5.0
    """Static: the same, for streams that stay open."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Rows of the batch."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 256
    """Token budget of a step; longer prompts are computed in chunks of what is left of it."""
    step_budget_s: Annotated[float, Field(gt=0)] | None = None
    """How long a step should take: prompts are cut into chunks that fit, by a cost model that
    learns while serving; None leaves it to max_num_batched_tokens alone."""
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    """Longest prompt plus answer; None is the model's own."""
    max_queued_requests: Annotated[int, Field(ge=1)] = 1024
    """Cap of the waiting queue."""
    block_size: Annotated[int, Field(ge=16, le=16)] = 16
    """Tokens of a KV block."""
    kv_cache_memory: Annotated[int, Field(ge=1)] | None = None
    """Bytes of the KV cache; None is what the model can use, at most a quarter of the memory."""
    prefix_cache: bool = True
    """Share the KV blocks of equal prompt beginnings within a tenant."""
    dtype: Dtype = Dtype.AUTO
    """Element type."""
    quantize: Quantize = Quantize.NONE
    """Weights of linear layers, packed once at load; see docs/quantization.md."""
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of the kernels; None is the cores this process may use."""
    default_max_tokens: Annotated[int, Field(ge=1)] = 512
    """Answer length where a request names none."""
    queue_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A request that has not started by then fails."""
    time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    """A request that has not ended by then ends with what there is."""


def engine_config(**settings: object) -> EngineConfig:
    """Validates settings; raises ConfigError with one line for the first that is wrong."""
    return checked(EngineConfig, **settings)


def checked(config: type[Config], **settings: object) -> Config:
    """The same for any class of settings."""
    try:
        return config(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = f"{name}: {first['msg'].lower()}, got {first['input']!r}"
        raise ConfigError(message) from None


def memory_limit() -> int:
    """Bytes this process may use: the cgroup's limit where there is one, else the machine's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return min(physical, int(text))
    return physical


def available_cores() -> int:
    """Cores this process may use: its affinity, cut by the cgroup's quota where there is one."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
