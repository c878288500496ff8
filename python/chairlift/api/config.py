"""The engine's settings: frozen, validated once, never changed after."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypedDict, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError

from chairlift.api.choices import (
    Batching,
    Device,
    Drafts,
    Dtype,
    InstructionSet,
    KvCacheDtype,
    ModelImpl,
    Quantize,
    ReasoningFormat,
    ToolFormat,
)
from chairlift.api.errors import ConfigError, echo
from chairlift.api.units import parse_size

__all__ = [
    "Batching",
    "Config",
    "Device",
    "Drafts",
    "Dtype",
    "EngineConfig",
    "EngineSettings",
    "KvCacheDtype",
    "Quantize",
    "ReasoningFormat",
    "ToolFormat",
    "checked",
    "engine_config",
]

Config = TypeVar("Config", bound=BaseModel)

_BY_NAME = Strict(False)


def _size(value: object) -> object:
    """Return the bytes of a size such as 64MiB; other values are checked as they are."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ConfigError:
        message = "expected a size such as 2GiB, 512MB or a number of bytes"
        raise ValueError(message) from None


_SIZE = BeforeValidator(_size)

ADAPTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The form of an adapter's name; a file of this name is in its folder."""
_MAX_STEP_DRAFTS: Final = 64
"""Drafts of a step at most: more logits would take more memory than they gain."""
_FOLDER_ADAPTERS: Final = 8
"""Slots for adapters that are loaded later, where there is a folder for them."""


def _assignments(value: object) -> object:
    """Return texts `NAME=VALUE`: of a mapping, or of texts that commas join."""
    if isinstance(value, Mapping):
        value = [f"{name}={path}" for name, path in value.items()]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    split = tuple(part.strip() for text in texts for part in text.split(",") if part.strip())
    names = (part.partition("=") for part in split)
    if not all(ADAPTER_NAME.fullmatch(name) and rest for name, _, rest in names):
        message = "expected NAME=VALUE, the name of letters, digits, points, lines and underscores"
        raise ValueError(message)
    return split


_ASSIGNMENTS = BeforeValidator(_assignments)


class EngineConfig(BaseModel):
    """Settings of `Engine` and `AsyncEngine`; each is also an option of `chairlift serve`.

    The text below a setting is its help on the command line.
    """

    # A bool is no number, and a text is none either; of the choices, the name will do.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    batching: Annotated[Batching, _BY_NAME] = Batching.CONTINUOUS
    """When a waiting request may first join the batch."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Requests of a full static or dynamic batch; default: max-num-seqs."""
    batch_window_s: Annotated[float, Field(ge=0)] = 0.05
    """dynamic: longest wait of the oldest request for a full batch."""
    batch_timeout_s: Annotated[float, Field(ge=0)] = 5.0
    """static: the same, while streams stay open."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Rows of the batch; default: 64, on a GPU 256."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 256
    """Token budget of a step; a longer prompt is computed in chunks. Default: 256, on a GPU
    2048."""
    step_budget_s: Annotated[float, Field(gt=0)] | None = None
    """Time of a step, such as 50ms: prompts are cut into chunks that fit, by a cost model that
    learns while serving, so that running answers continue; default: as long as its tokens take."""
    steps_in_flight: Annotated[int, Field(ge=1, le=2)] | None = None
    """Steps that are launched before the first of them has ended, 1 or 2; default: 1 on a CPU, 2 on
    a GPU."""
    drafts: Annotated[Drafts, _BY_NAME] | None = None
    """Tokens that a step checks beside the last one, where that pays; answers are the same. lookup
    finds them in the prompt and the answer. Default: lookup, on a GPU off."""
    draft: str | None = None
    """A draft model: a smaller one of the same tokenizer, which proposes drafts where none are
    found; default: none."""
    draft_quantize: Annotated[Quantize, _BY_NAME] | None = None
    """Weights of the draft model's linear layers; default: as those of the model."""
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    """Longest prompt plus answer; default: the model's own."""
    max_queued_requests: Annotated[int, Field(ge=1)] = 1024
    """Cap of the waiting queue."""
    max_text_bytes: Annotated[int, _SIZE, Field(ge=1024)] = 2**20
    """Longest text that is tokenized, in UTF-8, such as 1MiB; of a chat, when rendered."""
    block_size: Annotated[int, Field(ge=16, le=16)] = 16
    """Tokens of a KV block."""
    kv_cache_memory: Annotated[int, _SIZE, Field(ge=1)] | None = None
    """Memory of the KV cache, such as 2GiB; default: what the model can use, at most a quarter of
    the memory, or what the weights leave of a GPU's."""
    swap_memory: Annotated[int, _SIZE, Field(ge=1)] | None = None
    """Host memory for KV blocks of preempted requests, such as 4GiB, where a GPU runs the model (on
    a CPU the same memory gains more in the KV cache). They return where that takes less time than
    to compute them again. Default: none."""
    prefix_cache: bool = True
    """Share the KV blocks of equal prompt beginnings within a tenant, of a hybrid its states,
    too."""
    prefix_store: str | None = None
    """Folder that keeps KV blocks of prompts on disk, for one server at a time: a request of the
    same beginning loads them where that is faster than computing; see docs/prefix-store.md.
    Default: none."""
    prefix_store_bytes: Annotated[int, _SIZE, Field(ge=1)] | None = None
    """Size of that folder at most, such as 20GiB."""
    prefix_store_key: str | None = None
    """File with 32 secret bytes or more, of mode 0600; names of blocks are keyed by it."""
    prefix_store_uses: Annotated[int, Field(ge=1, le=2)] | None = None
    """A block is written when it is used so many times, 1 or 2. Default: 2."""
    state_snapshots: Annotated[int, Field(ge=0)] | None = None
    """States of a hybrid that are kept for prompts with the same beginning; default: four for each
    row, in at most a quarter of the KV cache's memory, and at least eight."""
    device: Annotated[Device, _BY_NAME] = Device.AUTO
    """Where the model runs; auto is a GPU if there is one that can run it."""
    dtype: Annotated[Dtype, _BY_NAME] = Dtype.AUTO
    """Element type of weights and activations."""
    model_impl: Annotated[ModelImpl, _BY_NAME] = ModelImpl.CHAIRLIFT
    """What computes the layers; transformers serves decoders of other families too, more slowly,
    with `chairlift[transformers]`."""
    quantize: Annotated[Quantize, _BY_NAME] = Quantize.NONE
    """Weights of linear layers in 8 or 4 bits, packed once at load; see docs/formats.md."""
    kv_cache_dtype: Annotated[KvCacheDtype, _BY_NAME] = KvCacheDtype.AUTO
    """Keys and values; int8 (CPU) and fp8 (GPU) halve the memory of bfloat16; see
    docs/formats.md."""
    adapters: Annotated[tuple[str, ...], _ASSIGNMENTS] | None = None
    """An adapter (LoRA) that is loaded at the start, NAME=FOLDER; repeat it for more."""
    adapter_tenants: Annotated[tuple[str, ...], _ASSIGNMENTS] | None = None
    """A tenant that may use an adapter, NAME=TENANT; default: every tenant."""
    adapter_folder: str | None = None
    """Folder whose adapters LoadAdapter may load by name; default: none."""
    max_adapters: Annotated[int, Field(ge=0, le=256)] | None = None
    """Adapters in memory at a time; default: those of the start, and 8 more with an adapter
    folder."""
    max_adapter_rank: Annotated[int, Field(ge=1, le=1024)] = 32
    """Largest rank of an adapter; memory is planned for it."""
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of the kernels; default: the cores this process may use."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that compute the model together, each some columns of every layer: the same
    answers; on one machine they share the threads and the memory that the settings name, and each
    has a GPU with device cuda (never run on a GPU). See docs/internals/ranks.md."""
    rank_listen: str | None = None
    """Address on which the other processes join from other hosts (`chairlift rank`), such as
    0.0.0.0:50070, on a private network: what they send is not encrypted; default: all are on this
    machine."""
    rank_key: str | None = None
    """File with 32 secret bytes or more, the same on all these hosts."""
    tool_format: Annotated[ToolFormat, _BY_NAME] = ToolFormat.AUTO
    """How the model writes function calls; auto: by its chat template. One that is named also gives
    tools to a model whose template takes none."""
    reasoning_format: Annotated[ReasoningFormat, _BY_NAME] = ReasoningFormat.AUTO
    """How the model marks its reasoning; auto: by its chat template."""
    default_max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest answer where a request names none; default: what the context leaves."""
    queue_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A request that has not started by then fails."""
    time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    """A request that has not ended by then ends with the tokens so far."""

    @property
    def max_step_drafts(self) -> int:
        """Return how many drafts a step may check, over all its rows."""
        if self.drafts is Drafts.OFF:
            return 0
        return min(_MAX_STEP_DRAFTS, max(0, self.max_num_batched_tokens - self.max_num_seqs))

    @property
    def num_local_ranks(self) -> int:
        """Return how many processes compute the model on this machine."""
        return 1 if self.rank_listen is not None else self.tensor_parallel

    @property
    def num_adapter_slots(self) -> int:
        """Return how many adapters there may be at a time."""
        if self.max_adapters is not None:
            return self.max_adapters
        later = 0 if self.adapter_folder is None else _FOLDER_ADAPTERS
        return len(self.adapters or ()) + later


class EngineSettings(TypedDict, total=False):
    """The fields of `EngineConfig` as keyword arguments, which a type checker knows.

    A choice may be given by its name.
    """

    batching: Batching | Literal["continuous", "dynamic", "static"]
    batch_size: int | None
    batch_window_s: float
    batch_timeout_s: float
    max_num_seqs: int
    max_num_batched_tokens: int
    step_budget_s: float | None
    steps_in_flight: int | None
    drafts: Drafts | Literal["off", "lookup"] | None
    draft: str | None
    draft_quantize: Quantize | Literal["none", "int8", "int4"] | None
    max_model_len: int | None
    max_queued_requests: int
    max_text_bytes: int | str
    block_size: int
    kv_cache_memory: int | str | None
    swap_memory: int | str | None
    prefix_cache: bool
    prefix_store: str | None
    prefix_store_bytes: int | str | None
    prefix_store_key: str | None
    prefix_store_uses: int | None
    state_snapshots: int | None
    device: Device | Literal["auto", "cpu", "cuda"]
    dtype: Dtype | Literal["auto", "float32", "bfloat16", "float16"]
    model_impl: ModelImpl | Literal["chairlift", "transformers"]
    quantize: Quantize | Literal["none", "int8", "int4"]
    kv_cache_dtype: KvCacheDtype | Literal["auto", "int8", "fp8"]
    adapters: Mapping[str, str] | Sequence[str] | None
    adapter_tenants: Mapping[str, str] | Sequence[str] | None
    adapter_folder: str | None
    max_adapters: int | None
    max_adapter_rank: int
    num_threads: int | None
    tensor_parallel: int
    rank_listen: str | None
    rank_key: str | None
    tool_format: (
        ToolFormat
        | Literal["auto", "none", "hermes", "qwen3-coder", "llama3-json", "mistral", "harmony"]
    )
    reasoning_format: (
        ReasoningFormat | Literal["auto", "none", "think", "mistral", "seed", "harmony"]
    )
    default_max_tokens: int | None
    queue_timeout_s: float
    time_limit_s: float


def engine_config(**settings: object) -> EngineConfig:
    """Validate the settings of an engine.

    Raises:
        ConfigError: A setting is wrong; the message has one line, for the first of them.
    """
    return checked(EngineConfig, **settings)


def checked(config: type[Config], **settings: object) -> Config:
    """Validate settings of any class.

    Raises:
        ConfigError: A setting is wrong; the message has one line, for the first of them.
    """
    try:
        return config(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        expected = text[:1].lower() + text[1:]
        message = f"{name}: {expected}, got {first['input']!r}"
        raise ConfigError(message) from None


def check_instruction_set() -> None:
    """Check the instruction set that the environment names; without one the kernels use the best.

    Raises:
        ConfigError: There is none of that name.
    """
    name = "CHAIRLIFT_CPU"
    if (value := os.environ.get(name)) and value not in list(InstructionSet):
        sets = ", ".join(InstructionSet)
        message = f"environment: {name}: expected one of {sets}, got {echo(value)!r}"
        raise ConfigError(message)
