"""The core's scheduler from settings: the same for an engine and for a replay."""

from collections.abc import Sequence
from typing import Protocol

from chairlift import _core
from chairlift.api.choices import Batching
from chairlift.api.errors import ConfigError

_NS_PER_S = 1_000_000_000


def nanoseconds(time_s: float | None) -> int | None:
    """Return a time as the core counts it."""
    return None if time_s is None else round(time_s * _NS_PER_S)


class SchedulerSettings(Protocol):
    """What `EngineConfig` and the header of a trace both say."""

    @property
    def batching(self) -> Batching:
        """Admission policy."""

    @property
    def batch_size(self) -> int | None:
        """Requests of a full batch; None is max_num_seqs."""

    @property
    def batch_window_s(self) -> float:
        """Dynamic: how long the oldest request waits at most."""

    @property
    def batch_timeout_s(self) -> float:
        """Static: the same, while streams stay open."""

    @property
    def max_num_seqs(self) -> int:
        """Rows of the batch."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Token budget of a step."""

    @property
    def step_budget_s(self) -> float | None:
        """How long a step may take; None is as long as its tokens take."""

    @property
    def max_queued_requests(self) -> int:
        """Cap of the waiting queue."""

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""

    @property
    def prefix_cache(self) -> bool:
        """Whether equal prompt beginnings are computed once."""


def new_scheduler(
    settings: SchedulerSettings,
    *,
    max_model_len: int,
    vocab_size: int,
    num_blocks: int,
    kv_windows: Sequence[int | None],
    hash_key: bytes,
    token_table: _core.TokenTable,
    steps_in_flight: int = 1,
    num_host_blocks: int = 0,
    swap_block_time: int = 0,
    max_step_drafts: int = 0,
    prompt_lookup: bool = False,
    state_snapshots: int | None = None,
) -> _core.Scheduler:
    """Build an idle scheduler.

    Args:
        settings: The policy and its limits.
        max_model_len: Longest prompt plus answer, in tokens.
        vocab_size: Token ids are below it.
        num_blocks: Blocks of the KV cache, the null block included.
        kv_windows: Sliding window of each KV group.
        hash_key: 32 bytes that name the blocks of the prefix cache.
        token_table: What each token id contributes to text.
        steps_in_flight: Steps that may be planned and not yet ended, 1 or 2.
        num_host_blocks: Blocks of host memory for preempted requests; 0 computes them again.
        swap_block_time: Nanoseconds to move one of them one way.
        max_step_drafts: Drafts of a step at most, over all its rows; 0 is none.
        prompt_lookup: Whether drafts are looked up in the tokens of each sequence.
        state_snapshots: Snapshots of recurrent states; None: the model has no recurrent state.

    Raises:
        ConfigError: A setting is out of range.
    """
    try:
        return _core.Scheduler(
            policy=settings.batching.value,
            batch_size=settings.batch_size or settings.max_num_seqs,
            batch_window=round(settings.batch_window_s * _NS_PER_S),
            batch_timeout=round(settings.batch_timeout_s * _NS_PER_S),
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=max_model_len,
            max_queued_requests=settings.max_queued_requests,
            vocab_size=vocab_size,
            block_size=settings.block_size,
            num_blocks=num_blocks,
            kv_windows=kv_windows,
            prefix_cache=settings.prefix_cache,
            hash_key=hash_key,
            token_table=token_table,
            steps_in_flight=steps_in_flight,
            step_budget=nanoseconds(settings.step_budget_s),
            num_host_blocks=num_host_blocks,
            swap_block_time=swap_block_time,
            max_step_drafts=max_step_drafts,
            prompt_lookup=prompt_lookup,
            state_snapshots=state_snapshots,
        )
    except _core.ConfigError as error:
        raise ConfigError(str(error)) from None
