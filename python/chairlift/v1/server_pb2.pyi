import datetime

from chairlift.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_STATE_UNSPECIFIED: _ClassVar[ServerState]
    SERVER_STATE_STARTING: _ClassVar[ServerState]
    SERVER_STATE_SERVING: _ClassVar[ServerState]
    SERVER_STATE_DRAINING: _ClassVar[ServerState]
    SERVER_STATE_DEAD: _ClassVar[ServerState]

class RowWork(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_WORK_UNSPECIFIED: _ClassVar[RowWork]
    ROW_WORK_PREFILL: _ClassVar[RowWork]
    ROW_WORK_DECODE: _ClassVar[RowWork]
    ROW_WORK_VERIFY: _ClassVar[RowWork]
SERVER_STATE_UNSPECIFIED: ServerState
SERVER_STATE_STARTING: ServerState
SERVER_STATE_SERVING: ServerState
SERVER_STATE_DRAINING: ServerState
SERVER_STATE_DEAD: ServerState
ROW_WORK_UNSPECIFIED: RowWork
ROW_WORK_PREFILL: RowWork
ROW_WORK_DECODE: RowWork
ROW_WORK_VERIFY: RowWork

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "state", "start_time", "device", "kernels", "batching", "max_num_seqs", "max_num_batched_tokens", "max_queued_requests", "batch_size", "block_size", "num_blocks", "prefix_cache", "default_max_tokens", "queue_timeout", "time_limit", "max_receive_bytes", "step_budget", "features", "max_text_bytes", "max_concurrent_streams", "max_stop_strings", "max_stop_token_ids", "max_chat_messages", "max_request_id_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_RECEIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_BUDGET_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHAT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_ID_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: ServerState
    start_time: _timestamp_pb2.Timestamp
    device: str
    kernels: str
    batching: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    batch_size: int
    block_size: int
    num_blocks: int
    prefix_cache: bool
    default_max_tokens: int
    queue_timeout: _duration_pb2.Duration
    time_limit: _duration_pb2.Duration
    max_receive_bytes: int
    step_budget: _duration_pb2.Duration
    features: _containers.RepeatedScalarFieldContainer[str]
    max_text_bytes: int
    max_concurrent_streams: int
    max_stop_strings: int
    max_stop_token_ids: int
    max_chat_messages: int
    max_request_id_bytes: int
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[ServerState, str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., device: _Optional[str] = ..., kernels: _Optional[str] = ..., batching: _Optional[str] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_queued_requests: _Optional[int] = ..., batch_size: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., prefix_cache: bool = ..., default_max_tokens: _Optional[int] = ..., queue_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_receive_bytes: _Optional[int] = ..., step_budget: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., features: _Optional[_Iterable[str]] = ..., max_text_bytes: _Optional[int] = ..., max_concurrent_streams: _Optional[int] = ..., max_stop_strings: _Optional[int] = ..., max_stop_token_ids: _Optional[int] = ..., max_chat_messages: _Optional[int] = ..., max_request_id_bytes: _Optional[int] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("name", "architecture", "vocab_size", "max_model_len", "max_context_len", "eos_token_ids", "dtype", "num_layers", "hidden_size", "sampling_defaults", "has_chat_template", "quantization", "kv_cache_dtype", "aliases", "adapters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    max_context_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    num_layers: int
    hidden_size: int
    sampling_defaults: SamplingDefaults
    has_chat_template: bool
    quantization: str
    kv_cache_dtype: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_context_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., num_layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., has_chat_template: bool = ..., quantization: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Iterable[str]] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ("block_map",)
    BLOCK_MAP_FIELD_NUMBER: _ClassVar[int]
    block_map: bool
    def __init__(self, block_map: bool = ...) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: Load
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("interval", "block_map")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MAP_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    block_map: bool
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., block_map: bool = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: Load
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("num_waiting", "num_running", "num_rows_held", "num_blocks", "num_free_blocks", "num_cached_blocks", "num_kv_tokens", "num_waiting_tokens", "num_preemptions", "num_prefix_queries", "num_prefix_hits", "num_steps", "num_recomputed_tokens", "num_waiting_suspended", "num_running_suspended", "num_host_blocks", "num_free_host_blocks", "num_swapped_tokens", "tenants", "num_state_snapshots", "num_prefix_hit_tokens", "waiting_by_cause", "inter_token_latency_p50", "inter_token_latency_p99", "block_map")
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_HELD_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NUM_STATE_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BY_CAUSE_FIELD_NUMBER: _ClassVar[int]
    INTER_TOKEN_LATENCY_P50_FIELD_NUMBER: _ClassVar[int]
    INTER_TOKEN_LATENCY_P99_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MAP_FIELD_NUMBER: _ClassVar[int]
    num_waiting: int
    num_running: int
    num_rows_held: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_kv_tokens: int
    num_waiting_tokens: int
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_steps: int
    num_recomputed_tokens: int
    num_waiting_suspended: int
    num_running_suspended: int
    num_host_blocks: int
    num_free_host_blocks: int
    num_swapped_tokens: int
    tenants: _containers.RepeatedCompositeFieldContainer[TenantActivity]
    num_state_snapshots: int
    num_prefix_hit_tokens: int
    waiting_by_cause: _containers.RepeatedCompositeFieldContainer[CauseCount]
    inter_token_latency_p50: _duration_pb2.Duration
    inter_token_latency_p99: _duration_pb2.Duration
    block_map: BlockMap
    def __init__(self, num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., num_rows_held: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., num_kv_tokens: _Optional[int] = ..., num_waiting_tokens: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_prefix_queries: _Optional[int] = ..., num_prefix_hits: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_recomputed_tokens: _Optional[int] = ..., num_waiting_suspended: _Optional[int] = ..., num_running_suspended: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., num_free_host_blocks: _Optional[int] = ..., num_swapped_tokens: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[TenantActivity, _Mapping]]] = ..., num_state_snapshots: _Optional[int] = ..., num_prefix_hit_tokens: _Optional[int] = ..., waiting_by_cause: _Optional[_Iterable[_Union[CauseCount, _Mapping]]] = ..., inter_token_latency_p50: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inter_token_latency_p99: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., block_map: _Optional[_Union[BlockMap, _Mapping]] = ...) -> None: ...

class CauseCount(_message.Message):
    __slots__ = ("cause", "count")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    cause: _generation_pb2.WaitCause
    count: int
    def __init__(self, cause: _Optional[_Union[_generation_pb2.WaitCause, str]] = ..., count: _Optional[int] = ...) -> None: ...

class BlockMap(_message.Message):
    __slots__ = ("held", "own", "shared", "cached", "free")
    HELD_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedScalarFieldContainer[int]
    own: _containers.RepeatedScalarFieldContainer[int]
    shared: _containers.RepeatedScalarFieldContainer[int]
    cached: _containers.RepeatedScalarFieldContainer[int]
    free: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, held: _Optional[_Iterable[int]] = ..., own: _Optional[_Iterable[int]] = ..., shared: _Optional[_Iterable[int]] = ..., cached: _Optional[_Iterable[int]] = ..., free: _Optional[_Iterable[int]] = ...) -> None: ...

class TenantActivity(_message.Message):
    __slots__ = ("tenant", "num_generated_tokens", "num_started", "time_to_first_token_p50", "time_to_first_token_p99", "reasons")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STARTED_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_P50_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_P99_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    num_generated_tokens: int
    num_started: int
    time_to_first_token_p50: _duration_pb2.Duration
    time_to_first_token_p99: _duration_pb2.Duration
    reasons: _containers.RepeatedCompositeFieldContainer[ReasonCount]
    def __init__(self, tenant: _Optional[str] = ..., num_generated_tokens: _Optional[int] = ..., num_started: _Optional[int] = ..., time_to_first_token_p50: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_to_first_token_p99: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reasons: _Optional[_Iterable[_Union[ReasonCount, _Mapping]]] = ...) -> None: ...

class ReasonCount(_message.Message):
    __slots__ = ("reason", "is_error", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    is_error: bool
    count: int
    def __init__(self, reason: _Optional[str] = ..., is_error: bool = ..., count: _Optional[int] = ...) -> None: ...

class WatchStepsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchStepsResponse(_message.Message):
    __slots__ = ("steps", "num_dropped")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DROPPED_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    num_dropped: int
    def __init__(self, steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., num_dropped: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step", "start", "duration", "num_waiting", "rows", "times", "num_preempted", "preempted_handles")
    STEP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    step: int
    start: _duration_pb2.Duration
    duration: _duration_pb2.Duration
    num_waiting: int
    rows: _containers.RepeatedCompositeFieldContainer[StepRow]
    times: StepTimes
    num_preempted: int
    preempted_handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[int] = ..., start: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., num_waiting: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[StepRow, _Mapping]]] = ..., times: _Optional[_Union[StepTimes, _Mapping]] = ..., num_preempted: _Optional[int] = ..., preempted_handles: _Optional[_Iterable[str]] = ...) -> None: ...

class StepTimes(_message.Message):
    __slots__ = ("schedule", "inputs", "forward", "sample", "update")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    schedule: _duration_pb2.Duration
    inputs: _duration_pb2.Duration
    forward: _duration_pb2.Duration
    sample: _duration_pb2.Duration
    update: _duration_pb2.Duration
    def __init__(self, schedule: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inputs: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., forward: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., sample: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., update: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StepRow(_message.Message):
    __slots__ = ("row", "handle", "request_id", "num_tokens", "sampled", "work", "num_drafts", "num_accepted", "finished")
    ROW_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    row: int
    handle: str
    request_id: str
    num_tokens: int
    sampled: bool
    work: RowWork
    num_drafts: int
    num_accepted: int
    finished: bool
    def __init__(self, row: _Optional[int] = ..., handle: _Optional[str] = ..., request_id: _Optional[str] = ..., num_tokens: _Optional[int] = ..., sampled: bool = ..., work: _Optional[_Union[RowWork, str]] = ..., num_drafts: _Optional[int] = ..., num_accepted: _Optional[int] = ..., finished: bool = ...) -> None: ...

class PlanMemoryRequest(_message.Message):
    __slots__ = ("model", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_memory", "swap_memory", "max_adapters", "max_adapter_rank")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SWAP_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTER_RANK_FIELD_NUMBER: _ClassVar[int]
    model: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_cache_memory: int
    swap_memory: int
    max_adapters: int
    max_adapter_rank: int
    def __init__(self, model: _Optional[str] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ..., kv_cache_memory: _Optional[int] = ..., swap_memory: _Optional[int] = ..., max_adapters: _Optional[int] = ..., max_adapter_rank: _Optional[int] = ...) -> None: ...

class PlanMemoryResponse(_message.Message):
    __slots__ = ("weight_bytes", "kv_cache_bytes", "activation_bytes", "num_blocks", "block_bytes", "swap_bytes", "num_host_blocks", "adapter_bytes", "state_bytes", "draft_bytes", "active_weight_bytes")
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    num_blocks: int
    block_bytes: int
    swap_bytes: int
    num_host_blocks: int
    adapter_bytes: int
    state_bytes: int
    draft_bytes: int
    active_weight_bytes: int
    def __init__(self, weight_bytes: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., num_blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., swap_bytes: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., adapter_bytes: _Optional[int] = ..., state_bytes: _Optional[int] = ..., draft_bytes: _Optional[int] = ..., active_weight_bytes: _Optional[int] = ...) -> None: ...
