"""The compiled core: scheduler and plan (`chairlift-core`), CPU kernels (`chairlift-kernels`).

Times are nanoseconds of one monotonic clock, given by the caller. `Tensor` arguments are CPU
tensors; a wrong dtype, shape or device raises `TypeError` or `ValueError` that names the argument.
Where the scheduler takes a `_Buffer`, that is a tensor or a numpy array: it needs no torch.
Every call that does real work releases the GIL.
"""

from collections.abc import Iterator, Sequence
from typing import Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.new_request import NewRequest

_Buffer: TypeAlias = Tensor | NDArray[np.int32]

__version__: str

BLOCK_TYPES: dict[str, tuple[int, int]]
"""The weights and the bytes of a block by its type, which mostly is the name in GGUF files."""
DELTA_VALUE_STEP: int
"""Numbers of a value of the gated delta rule come in multiples of this."""
HEAD_DIM_STEP: int
"""Numbers of a head come in multiples of this."""
SCAN_HEAD_STEP: int
"""Numbers of a head of the selective scan come in multiples of this."""
MIN_TRANSFERRED_TOKENS: int
"""A server computes fewer missing tokens of a prompt itself, whatever another could do."""
MIN_TRANSFER_SAVED_NS: int
"""And so it does with what it is predicted to compute in less."""
MAX_LIVE_TRANSFERS: int
"""Prompts that a server has computed elsewhere at once."""
MAX_CONV_TAPS: int
"""Tokens that an output of a causal convolution sees at most."""
MAX_HEAD_DIM: int
"""Most numbers of a head."""
PLAN_HEADER_LEN: int
"""Integers before the first section of a plan."""
PLAN_SECTIONS: tuple[tuple[str, int, int], ...]
"""The sections of a plan in their order: name, integers of an entry, and where in the header its
number of entries is."""
LOAD_STATE: int
"""The kind of a state update: before the step a row gets the state of a snapshot."""
COPY_STATE: int
"""Before the step a row gets the state of another row."""
SAVE_STATE: int
"""After the step a snapshot gets the state of a row."""

__all__ = [
    "BLOCK_TYPES",
    "COPY_STATE",
    "DELTA_VALUE_STEP",
    "HEAD_DIM_STEP",
    "LOAD_STATE",
    "MAX_CONV_TAPS",
    "MAX_HEAD_DIM",
    "MAX_LIVE_TRANSFERS",
    "MIN_TRANSFERRED_TOKENS",
    "MIN_TRANSFER_SAVED_NS",
    "PLAN_HEADER_LEN",
    "PLAN_SECTIONS",
    "RANK_MESSAGE_HEADER",
    "SAVE_STATE",
    "SCAN_HEAD_STEP",
    "Account",
    "AdapterTable",
    "Added",
    "AnswerParser",
    "BlockEvents",
    "BlockUses",
    "Candidates",
    "ConfigError",
    "ConstraintMasks",
    "Constraints",
    "CoreError",
    "Drafts",
    "Events",
    "Experts",
    "FailedEvent",
    "FinishedEvent",
    "Fleet",
    "FleetRun",
    "Grammar",
    "GrammarCompiler",
    "InvariantError",
    "Linear",
    "Load",
    "LowRank",
    "MissingBlocks",
    "Outboxes",
    "Posted",
    "PrefixLoad",
    "PrefixStore",
    "PrefixStoreStats",
    "ProcessGuard",
    "PromptEvent",
    "RankError",
    "RankGroup",
    "RankListener",
    "Recording",
    "Refused",
    "Router",
    "SampleLists",
    "SamplerStates",
    "Scheduler",
    "SequenceDraws",
    "StopRegex",
    "TextStream",
    "TokenTable",
    "TokensEvent",
    "Undrafted",
    "UnknownStep",
    "Waiting",
    "__version__",
    "activate",
    "activate_mul",
    "add_layer_norm",
    "add_rms_norm",
    "add_scaled",
    "apply_plan",
    "attention_work",
    "causal_conv",
    "copy_states",
    "cpu_features",
    "dequantize",
    "full_attention",
    "gate_by_sigmoid",
    "gated_delta",
    "gated_rms_norm",
    "json_shape",
    "kv_write",
    "layer_norm",
    "linear_bytes",
    "low_rank_bytes",
    "match_all",
    "matched_names",
    "multiply_in_registers",
    "num_rank_words",
    "paged_attention",
    "quantize",
    "read_memory",
    "rms_norm",
    "rope",
    "rotate",
    "row_bytes",
    "row_weights",
    "sample",
    "scale",
    "score_tokens",
    "select_rows",
    "selective_scan",
    "set_num_threads",
    "transfer_limit",
    "value_size",
]

# --- scheduler ------------------------------------------------------------------------------

class CoreError(Exception):
    """Something that the core refuses; the base of the errors below."""

class ConfigError(CoreError):
    """A scheduler setting is out of range; the message names it."""

class Refused(CoreError):
    """`Scheduler.add` does not take the request.

    Attributes:
        reason: `BAD_PARAMETER`, `PROMPT_TOO_LONG`, `KV_CAPACITY` or `QUEUE_FULL`.
        field: Path of the offending field (`prompt`, `stopping.max_tokens`, ...), or empty.
        message: For people.
    """

    reason: str
    field: str
    message: str

class UnknownStep(CoreError):
    """The step id is not in flight."""

class InvariantError(CoreError):
    """`check_invariants` found the state broken; the message says which rule."""

@final
class TokenTable:
    """What each token id contributes to text (see `model.tokenizer`)."""

    def __new__(
        cls,
        tokens: Sequence[bytes],
        special: Sequence[int],
        *,
        byte_fallback: Sequence[int] = ...,
        strip_first_space: bool = False,
        first_tokens: Sequence[bytes] = ...,
    ) -> Self:
        """Builds the table.

        Args:
            tokens: Bytes of each id, `[vocab_size]`; an id without bytes contributes nothing.
            special: Ids that `skip_special_tokens` leaves out.
            byte_fallback: Ids that stand for one raw byte (`<0xNN>` of SentencePiece models).
            strip_first_space: The decoder drops one leading space of the whole text.
            first_tokens: What each id contributes as the first token of a text, `[vocab_size]`;
                empty where that is no different.

        Raises:
            ValueError: An id is outside the vocabulary, a `byte_fallback` id has not one byte, or
                `first_tokens` has another length than `tokens`.
        """

    @property
    def vocab_size(self) -> int:
        """Number of ids."""

    def outline(self, ids: Sequence[int]) -> list[tuple[int, bytes, bool]]:
        """Returns the tokens that constraints are compiled against without the others.

        These are special tokens, tokens of one byte, and those in `ids`: their ids, their bytes,
        and whether they are special.
        """

@final
class StopRegex:
    """Patterns that end an answer, as one automaton of bounded size; any thread may build it."""

    def __new__(cls, patterns: Sequence[str]) -> StopRegex:
        """Compiles patterns.

        Raises:
            ValueError: With the position of a pattern, and what is wrong with it.
        """

@final
class AnswerParser:
    """Finds reasoning and function calls in the text of an answer."""

    def __new__(
        cls,
        *,
        calls: str | None = None,
        reasoning: str | None = None,
        starts_in_reasoning: bool = False,
        functions: Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]] = ...,
        id_key: int = 0,
        kept_tokens: Sequence[int] = ...,
    ) -> AnswerParser:
        """Starts an answer; the scheduler starts one of its own for each answer of a request.

        Args:
            calls: The format of calls, a value of `ToolFormat`; None leaves them text.
            reasoning: The same, of `ReasoningFormat`.
            starts_in_reasoning: The prompt ends with the mark that begins reasoning.
            functions: Names, each with its parameters that are not texts alone, and of each of
                these the types that JSON schemas name.
            id_key: Makes the ids of calls.
            kept_tokens: Special tokens that are text for the parser: marks.

        Raises:
            ValueError: There is no such format, or no such type.
        """

    def push(self, piece: str) -> list[tuple[str, str]]:
        """Appends text; returns what it decides: `text`, `reasoning`, `call` or `arguments`."""

    def finish(self) -> list[tuple[str, str]]:
        """Ends the answer; returns what was undecided."""

@final
class TextStream:
    """The text of one token sequence while it grows, as the scheduler makes it.

    Deltas concatenate to the decode of the whole sequence, and none splits a character; text that
    may be the start of a stop string waits until that is decided.
    """

    stopped: str | None
    """The stop string that matched: of those that end first, the longest."""

    def __new__(
        cls,
        table: TokenTable,
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = ...,
        stop_regex: StopRegex | None = None,
        include_stop: bool = False,
    ) -> Self:
        """Starts an empty text; `include_stop` keeps the stop string that matches."""

    def push(self, token: int) -> str:
        """Appends one token; returns what it decides. Empty after a stop string matched."""

    def finish(self) -> str:
        """Ends the text; returns what was undecided, with U+FFFD for an incomplete character."""

@final
class Added:
    """A request is queued."""

    request_id: int
    slots: list[int]
    """Dense index of each answer until it ends: the runner keeps its sampling parameters there."""
    queue_position: int

@final
class TokensEvent:
    """New output of one answer in one step."""

    request_id: int
    index: int
    text: str
    """Complete UTF-8; lags behind `token_ids` while a character or stop string is undecided."""
    reasoning: str
    tool_calls: list[tuple[int, str, str, str]]
    """Parts of function calls: position, id, name, and the next piece of the arguments."""
    token_ids: list[int]
    sample_slot: int
    """Where the step's sampled arrays hold the first of `token_ids`."""

@final
class PromptEvent:
    """A piece of the prompt of a request, in order."""

    request_id: int
    offset: int
    """Position of the first of `token_ids`."""
    text: str
    """Complete UTF-8; lags behind `token_ids` while a character is undecided."""
    token_ids: list[int]
    score_slot: int
    """Where the step's arrays hold the log probabilities of these tokens."""
    num_scores: int
    """How many: all of `token_ids` but the first of a prompt, or none."""

@final
class Account:
    """What a request has cost; times as given by the caller of the scheduler."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, found in the prefix cache at the first admission."""
    transferred_tokens: int
    """Of `cached_tokens`, those whose blocks came from outside while the request was held."""
    output_tokens: int
    arrival: int
    first_scheduled: int | None
    first_token: int | None
    finished: int
    num_preemptions: int
    num_recomputed_tokens: int
    waits: list[tuple[str, int]]
    """Where the time from arrival to first scheduling went, by cause (see `Waiting`); not 0."""

@final
class FinishedEvent:
    """An answer is complete; nothing follows for it."""

    request_id: int
    index: int
    reason: str
    """`stop`, `length`, `cancelled` or `time_limit`."""
    stop: str | None
    """The stop string that matched."""
    stop_token_id: int | None
    account: Account
    """Of the answer; what the prompt took is in that of the first."""
    last: bool
    """Nothing follows for the request."""

@final
class FailedEvent:
    """A request ended by an error, with all its answers; nothing follows for it."""

    request_id: int
    reason: str
    """`QUEUE_TIMEOUT`, `NUMERIC_FAULT`, `NO_TOKEN_LEFT`, `CONSTRAINT_TOO_COMPLEX`, `STEP_FAILED`,
    `ENGINE_DOWN`, `DRAINING` or `UNKNOWN_ADAPTER`."""
    account: Account

@final
class Events:
    """What one step produced, in order; becomes Python objects only when iterated."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[TokensEvent | PromptEvent | FinishedEvent | FailedEvent]: ...
    @property
    def ended(self) -> list[int]:
        """Ids of the requests of which nothing follows."""

@final
class BlockEvents:
    """Changes of what can be found in the prefix cache, in order; any thread may read them."""

    def __len__(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Memory that they take."""

    @property
    def streams(self) -> list[int]:
        """Places in the list of reported tenants that have changes."""

    @property
    def has_adapters(self) -> bool:
        """Whether blocks of an adapter were stored."""

    def changes(
        self, stream: int
    ) -> list[tuple[list[int], int | None, tuple[int, int], list[int] | None]]:
        """Returns the changes of one tenant.

        Returns:
            Of blocks that were stored, each behind the one before: their handles, that of the block
            before the first (None: the beginning of a prompt), slot and load of the adapter, and
            all their tokens. Of blocks that were removed: their handles, and no tokens.
        """

@final
class Posted:
    """What became of the events of a step."""

    woken: list[int]
    """Streams that had nothing to send and now have."""
    filled: list[int]
    """Streams whose unsent tokens now exceed the limit."""
    started: list[int]
    """Requests that got their first tokens."""
    rest: list[TokensEvent | PromptEvent | FinishedEvent | FailedEvent]
    """Events that are not tokens of a tracked request."""

@final
class BlockUses:
    """The blocks that steps used; immutable."""

    def __len__(self) -> int: ...
    def names(self) -> list[bytes]:
        """Returns the name of each block, 32 bytes."""

    def groups(self) -> list[int]:
        """Returns the KV group of each block."""

    def contents(self, pool: Tensor, numbers: list[int] | None = None) -> bytes:
        """Returns the bytes of blocks, from a pool uint8 `[planes, blocks, width]`.

        Args:
            pool: The pool.
            numbers: Places in `names`; None is all.

        Raises:
            ValueError: A number is out of range.
        """

@final
class MissingBlocks:
    """Blocks of a prompt from a block index on, by their numbers; immutable.

    Numbers go by block index, then by KV group; of a group with a window those blocks alone have
    one that the token behind the last full block sees.
    """

    @property
    def first(self) -> int:
        """The block index."""

    @property
    def num_indices(self) -> int:
        """How many block indices there are from there on."""

    @property
    def number(self) -> int:
        """The number of the first block."""

    @property
    def names(self) -> list[bytes]:
        """The names, one after another."""

    @property
    def state(self) -> bytes | None:
        """The name of the recurrent state behind the last block; None without."""

    def __len__(self) -> int: ...

@final
class PrefixStore:
    """Blocks on disk; any thread may call it, and no call but `close` waits for a file."""

    def __new__(
        cls,
        folder: str,
        *,
        max_bytes: int,
        block_bytes: int,
        layout: bytes,
        key: bytes,
        state_bytes: int = 0,
        admits_first: bool = False,
    ) -> PrefixStore:
        """Locks a folder, finds the blocks in it, and starts a thread to write and one to read.

        Args:
            folder: One process at a time has it; made if it is missing.
            max_bytes: Bytes of all files, at most.
            block_bytes: Bytes of a block, over all planes.
            layout: 32 bytes that stand for the model, its numbers and their layout.
            key: 32 secret bytes.
            state_bytes: Bytes of a recurrent state; 0 is a model without.
            admits_first: Whether a block is written at its first use, not at its second.

        Raises:
            ConfigError: The bytes are too few.
            OSError: Another process has the folder, or it cannot be read and written.
        """

    def write(self, pool: Tensor, uses: BlockUses, group_bytes: Sequence[int]) -> None:
        """Copies used blocks that are worth it from a pool, uint8 `[planes, blocks, width]`.

        Args:
            pool: Where they lie.
            uses: From `Scheduler.take_block_uses`.
            group_bytes: Bytes of a block of each KV group, behind which zeros are written.

        Raises:
            ValueError: The pool has blocks of another size.
        """

    def write_state(self, name: bytes, is_hit: bool, states: Sequence[Tensor], row: int) -> None:
        """Copies a used recurrent state that is worth it, in pieces of the size of a block.

        Args:
            name: From `Scheduler.take_state_uses`, as is `is_hit`.
            is_hit: Whether a request begins with it.
            states: Of each layer, uint8 `[rows, width]`.
            row: Where in each of them.
        """

    def begin_load(self, missing: MissingBlocks, saves: int | None = None) -> PrefixLoad | None:
        """Begins to read missing blocks and behind them their state, as many as are known.

        Args:
            missing: From `Scheduler.stored_blocks`.
            saves: Nanoseconds to compute them; None is not known.

        Returns:
            None where there are none, or where computing is predicted to be as fast.
        """

    def stats(self) -> PrefixStoreStats | None:
        """Returns counts since it was opened; None once it is closed."""

    def close(self, timeout_s: float) -> bool:
        """Writes what waits and releases the folder; returns False if the time was too short."""

@final
class PrefixLoad:
    """Blocks on their way from disk; reading ends when it is dropped."""

    def poll(self, timeout_s: float) -> int | None:
        """Returns how many blocks are ready; waits for the first. None if no more come."""

    def keep_pieces(self, count: int) -> None:
        """Keeps the next that are ready as pieces of a recurrent state."""

    def place_state(self, states: Sequence[Tensor], row: int) -> None:
        """Copies the pieces that were kept, all of a state, into a row of the states."""

    def place(self, pool: Tensor, blocks: Sequence[int]) -> None:
        """Copies the next blocks that are ready into these of a pool; none into block 0."""

@final
class PrefixStoreStats:
    """Counts of a store, in blocks."""

    num_blocks: int
    """Blocks that can be loaded."""
    num_bytes: int
    num_foreign: int
    """Segments of other models, layouts or keys."""
    loaded: int
    written: int
    dropped: int
    """Writes that the full queue did not take."""
    failed: int
    """Writes that the system refused."""
    corrupt: int
    declined: int
    """Loads that were predicted to take as long as computing."""

@final
class ProcessGuard:
    """A thread that ends this process and never needs the interpreter's lock.

    It ends the process when the interpreter is silent for longer than it may be, and when a
    shutdown takes too long. Time in which the process was stopped (SIGSTOP) counts as no time, and
    neither is it silence while threads wait for a processor, up to a minute.
    """

    def __new__(cls, exit_code: int) -> ProcessGuard:
        """Start the thread; until a limit is set it ends nothing.

        Args:
            exit_code: Of a process that the guard ends; no `atexit` handler runs.
        """

    def beat(self) -> None:
        """Note that the interpreter runs."""

    def limit_silence(self, seconds: float) -> None:
        """Set the longest time between two beats, from now on."""

    def exit_within(self, seconds: float) -> None:
        """End the process after this time, whatever it does; a later call replaces it."""

    def watch_signals(self, exit_within_s: float) -> None:
        """End the process some time after SIGTERM or SIGINT, also if no Python handler can run.

        Call it after the handlers of Python are set: they still run. From the first signal on the
        interpreter may be silent for five seconds at most.

        Args:
            exit_within_s: From the first signal to the exit.
        """

    def close(self) -> None:
        """End the thread; the process is on its own."""

    def __enter__(self) -> ProcessGuard: ...
    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...

@final
class Outboxes:
    """The messages of all streams, in the encoding of `GenerateResponse`.

    Requests are those of the scheduler; a request or stream that is not there is a no-op. Any
    thread may read the figures.
    """

    num_tokens: list[int]
    """Of tracked requests so far, by group."""
    first_token: tuple[list[int], float]
    """Seconds from arrival to the first tokens: values in each bucket, and their sum."""
    inter_token: tuple[list[int], float]
    """Seconds between tokens of a request."""

    def __new__(
        cls,
        *,
        max_token_bytes: int,
        first_token_bounds: Sequence[float],
        inter_token_bounds: Sequence[float],
    ) -> Outboxes: ...
    def open(self) -> int:
        """Return a stream with nothing to send."""

    def close(self, stream: int) -> None:
        """Forgets a stream and the requests that still send to it."""

    def track(
        self,
        request: int,
        stream: int,
        request_id: str,
        event: bytes,
        *,
        group: int,
        arrived_at: int,
        text: bool,
        token_ids: bool,
        logprobs: bool,
        interval: int,
        num_answers: int = 1,
        num_candidates: int = 0,
        echo: bool = False,
        prompt_logprobs: bool = False,
        num_prompt_candidates: int = 0,
        log: int | None = None,
    ) -> None:
        """Sends a request's first event to a stream, and its tokens from now on.

        Args:
            request: Of the scheduler.
            stream: From `open`.
            request_id: The client's name of the request.
            event: An encoded `Event` without its sequence number.
            group: A small number; tokens are counted by it.
            arrived_at: Nanoseconds, on the clock of `post`.
            text: Whether text is sent.
            token_ids: Whether token ids are.
            logprobs: Whether log probabilities and ranks are.
            interval: Tokens per event after the first; 0 is one event at the end.
            num_answers: Each has events of its own.
            num_candidates: The likeliest tokens that are sent with each token.
            echo: Whether the text of the prompt is sent, if `text` is.
            prompt_logprobs: Whether log probabilities and ranks of the prompt are.
            num_prompt_candidates: The same of the prompt.
            log: From `open_log`: keeps what is sent.

        Raises:
            ValueError: The stream is closed.
        """

    def put(self, stream: int, event: bytes) -> None:
        """Appends an encoded `Event` that belongs to no live request."""

    def end(
        self,
        request: int,
        event: bytes | None,
        *,
        index: int = 0,
        last: bool = True,
        only_logged: bool = False,
    ) -> None:
        """Ends an answer: its tokens that wait, then an event if there is one.

        With the last one the request ends: what waits of its other answers goes first. The event is
        an encoded `Event` without its sequence number. One that is only logged is for a stream that
        resumes the request, and not for this one.
        """

    def open_log(self, max_bytes: int) -> int:
        """Return a log of sent events, which keeps the last ones within a bound of memory."""

    def close_log(self, log: int) -> None:
        """Forgets a log."""

    def shrink_log(self, log: int) -> int:
        """Gives back memory that no further event needs; return the bytes that are held."""

    def log_range(self, log: int) -> tuple[int, int]:
        """Return the highest number whose event is no longer in a log, and the highest of all."""

    def reroute(self, request: int, stream: int, request_id: str) -> bool:
        """Moves a request with its unsent tokens; return whether this has filled the stream."""

    def replay(self, log: int, stream: int, request_id: str, after: int) -> bool:
        """Sends events after a number again; return whether this has filled the stream."""

    def forget(self, request: int) -> None:
        """Forgets a request; what it has not sent is lost."""

    def post(
        self,
        now: int,
        events: Events,
        logprobs: Tensor,
        ranks: Tensor,
        candidates: Candidates | None = None,
        prompt: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    ) -> Posted:
        """Takes the tokens of tracked requests out of a step's events.

        Args:
            now: Nanoseconds.
            events: From `Scheduler.update`.
            logprobs: float32 `[S]`, of the step's sample slots, or empty.
            ranks: int32 `[S]`, likewise.
            candidates: Of the same slots.
            prompt: As `score_tokens` writes them, of the step's prompts.
        """

    def take(self, stream: int) -> list[bytes]:
        """Return everything that waits for a stream, as messages."""

    def is_empty(self, stream: int) -> bool:
        """Tells whether a stream has nothing to send."""

@final
class Load:
    """A snapshot of the scheduler; counts are requests, rows, tokens or blocks."""

    num_waiting: int
    num_running: int
    num_waiting_suspended: int
    """Of those that wait and those with a row, they may not go on: paused, or without credit."""
    num_running_suspended: int
    num_rows_held: int
    """Rows in use, those that wait empty for the end of a static or dynamic batch included."""
    num_blocks: int
    """Blocks that requests can have (the null block is not counted)."""
    num_free_blocks: int
    """Free or evictable."""
    num_cached_blocks: int
    """Published in the prefix cache, in use or not."""
    num_kv_tokens: int
    """Tokens whose keys and values running requests have written."""
    num_preemptions: int
    num_recomputed_tokens: int
    """Computed again after a preemption."""
    num_host_blocks: int
    """Of the host's pool, and those that hold nothing."""
    num_free_host_blocks: int
    num_swapped_tokens: int
    """Computed tokens that came back from host memory after a preemption, since the start."""
    num_prefix_queries: int
    """Full prompt blocks looked up, and found, since the start."""
    num_prefix_hits: int
    num_prefix_hit_tokens: int
    """Prompt tokens that need not be computed for it, since the start."""
    num_waiting_step: int
    """Waiting requests by what they wait for, as `Waiting.cause` says; the suspended ones are
    `num_waiting_suspended`."""
    num_waiting_row: int
    num_waiting_blocks: int
    num_waiting_budget: int
    num_waiting_policy: int
    num_waiting_share: int
    num_state_snapshots: int
    """Of recurrent states, that requests can begin with."""
    num_waiting_tokens: int

@final
class Waiting:
    """How a live request stands."""

    state: str
    """`waiting`, `running` or `suspended`."""
    cause: str | None
    """What it waits for, as of the last step that was planned; None while it runs.

    `step` (the one being computed), `row`, `blocks`, `budget` (of the step), `policy` (its gate),
    `share` (another tenant's turn) or `suspended`.
    """
    num_before: int
    """Requests before it in the queue; with several tenants as if they took turns."""
    num_computed_tokens: int
    num_tokens: int
    """Known tokens, prompt and output."""

@final
class Scheduler:
    """Owns requests and KV blocks; decides which tokens each step computes."""

    def __new__(
        cls,
        *,
        policy: str,
        batch_size: int,
        batch_window: int,
        batch_timeout: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        max_queued_requests: int,
        vocab_size: int,
        block_size: int,
        num_blocks: int,
        kv_windows: Sequence[int | None],
        prefix_cache: bool,
        hash_key: bytes,
        token_table: TokenTable,
        steps_in_flight: int = 1,
        step_budget: int | None = None,
        num_host_blocks: int = 0,
        swap_block_time: int = 0,
        max_step_drafts: int = 0,
        prompt_lookup: bool = False,
        state_snapshots: int | None = None,
    ) -> Self:
        """Builds an idle scheduler.

        Args:
            policy: `continuous`, `dynamic` or `static`.
            batch_size: Requests of a full batch (dynamic, static).
            batch_window: Longest wait of the oldest request for a full batch (dynamic).
            batch_timeout: The same for static.
            max_num_seqs: Rows of the batch.
            max_num_batched_tokens: Token budget of a step; at least `max_num_seqs`.
            max_model_len: Longest prompt plus answer.
            max_queued_requests: Cap of the waiting queue.
            vocab_size: Width of the logits; every token id must be below it.
            block_size: Tokens of a KV block.
            num_blocks: Blocks of the pool, the null block 0 included.
            kv_windows: One entry per KV group: its sliding window in tokens, or None.
            prefix_cache: Whether full blocks are shared between requests.
            hash_key: 32 bytes that key the prefix hashes.
            token_table: For text and stop strings.
            steps_in_flight: Steps that may be planned but not yet updated: 1 or 2.
            step_budget: How long a step may take by the cost model, in nanoseconds; prompts are
                cut into chunks that fit.
            num_host_blocks: Of the host's pool, where the preempted may keep what they have
                computed; with 0 they compute it again.
            swap_block_time: How long a block takes there, or back, in nanoseconds: a request keeps
                its blocks if both ways take no longer than its tokens by the cost model.
            max_step_drafts: Drafts of a step at most, over all its rows; 0 is none.
            prompt_lookup: Whether drafts are looked up in the tokens of each sequence.
            state_snapshots: Snapshots of recurrent states that there is memory for; None: the model
                has no recurrent state.

        Raises:
            ConfigError: A setting is out of range.
        """

    max_answers: int
    """That a request may ask for."""
    max_context_len: int
    """Longest prompt plus answer this server can hold: `max_model_len`, or what the pool has."""
    plan_capacity: int
    """Length of the int32 buffer that `schedule` writes to."""
    num_slots: int
    """Every `Added.slot` is below this."""
    @property
    def num_waiting(self) -> int:
        """Requests without a row; the queue's cap counts them."""

    wake_at: int | None
    """After an idle `schedule`: when something is due if no command comes before."""

    def add(self, now: int, request: NewRequest) -> Added:
        """Queues a request.

        Of the tenant that was served least, the request joins first that has to start first: by its
        queue deadline, in time for its first token, or 30 s after its arrival; a level of priority
        is worth 10 s of that.

        Raises:
            Refused: With reason, field and message.
        """

    def change(
        self,
        now: int,
        request_id: int,
        *,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        stop: Sequence[str] = ...,
        stop_token_ids: Sequence[int] = ...,
        include_stop: bool = False,
        priority: int | None = None,
        queue_timeout: int | None = None,
        time_to_first_token: int | None = None,
        time_limit: int | None = None,
        credit: int = 0,
        credit_is_final: bool = False,
        paused: bool | None = None,
        stop_regex: StopRegex | None = None,
    ) -> bool:
        """Changes a live request from the next step on.

        Args:
            now: The time.
            request_id: From `add`.
            max_tokens: None leaves all limits and stops as they are; a number replaces them all.
            min_tokens: With `max_tokens`.
            stop: With `max_tokens`; looked for in text that was not given out before.
            stop_token_ids: With `max_tokens`.
            include_stop: With `max_tokens`.
            priority: None leaves priority and times as they are; a number replaces them all.
            queue_timeout: With `priority`; from the arrival on, None is no limit.
            time_to_first_token: With `priority`; likewise.
            time_limit: With `priority`; likewise.
            credit: More output tokens; no effect on a request without a limit of credit.
            credit_is_final: No more credit follows: each answer ends with the last token that its
                credit pays for (`length`), or at once if it has that already; one that has no token
                because none is paid for ends as `cancelled`.
            paused: Whether it stands still; None leaves it as it is.
            stop_regex: With `max_tokens`; matched as `stop` is.

        Returns:
            False if it has ended or never was.
        """

    def abort(self, now: int, request_id: int, reason: str = "cancelled") -> bool:
        """Ends a request in any state.

        Args:
            now: The time.
            request_id: From `add`.
            reason: `cancelled` or `time_limit` (its last event is `FinishedEvent`); `STEP_FAILED`,
                `ENGINE_DOWN` or `DRAINING` (`FailedEvent`).

        Returns:
            Whether it was live.
        """

    def draft(
        self, request_id: int, tokens: Sequence[int], index: int = 0, by_model: bool = False
    ) -> bool:
        """Proposes tokens that may follow the last token of an answer: its next step checks them.

        They are cut to 16, to those before the first that is not in the vocabulary, and by the step
        to what it has room for. They take the place of earlier ones.

        Args:
            request_id: From `add`.
            tokens: The guesses.
            index: Which answer of the request.
            by_model: Whether a draft model drew them; how often these are right counts apart.

        Returns:
            Whether the answer decodes, with no step in flight; otherwise nothing changes.
        """

    def undrafted(self, pass_ns: int) -> tuple[int, list[Undrafted]]:
        """Tells which answers a draft model is to draft for before the next step, and how much.

        These are answers that decode and have no drafts, and whose own tokens promise fewer tokens
        per second than a draft model does.

        Args:
            pass_ns: Nanoseconds in which the draft model draws one draft for each of them.

        Returns:
            How many drafts pay for each, 0 at times; and the answers.
        """

    def tokens_from(self, slot: int, start: int) -> list[int]:
        """Returns prompt and output of the answer in a slot, from token `start` on."""

    def draft_all(self, drafts: Drafts) -> None:
        """Proposes the drafts of many answers at once, as `draft`."""

    def schedule(self, now: int, plan: _Buffer) -> int | None:
        """Plans a step and writes it to `plan`, int32 `[plan_capacity]`.

        Returns:
            The step id, or None when there is nothing to run (see `wake_at`).
        """

    def update(self, now: int, step: int, tokens: _Buffer) -> Events:
        """Takes the sampled tokens of a step and gives what happened since the last call.

        Args:
            now: The time.
            step: From `schedule`.
            tokens: int32 `[num_samples]`, the token of each sample slot; one outside of the
                vocabulary, as `sample` gives, says that the logits were not finite.

        Raises:
            UnknownStep: The step is not in flight.
        """

    def last_step(self) -> tuple[bytes, list[int]]:
        """Tells what the step did that ended last.

        Returns:
            int32 `[R, 4]` in the order of the plan's rows: work (0 prefill, 1 decode, 2 verify of
            drafts), drafts, accepted drafts, whether the row finished; and the requests that were
            preempted for the step, an entry per sequence.
        """

    def fail(self, now: int, step: int, failing: Sequence[int]) -> Events:
        """Rolls the oldest step back, and the one behind it.

        The requests `failing` fail; the others keep their rows and begin again.

        Raises:
            UnknownStep: The step is not the oldest in flight.
        """

    def take_events(self) -> Events:
        """Return the events that no step carried (aborts, timeouts)."""

    def report_blocks(self, tenants: Sequence[str]) -> None:
        """Tells from now on which blocks of some tenants the prefix cache has.

        Those of requests that are added later and have no salt are reported.
        """

    def take_block_events(self) -> BlockEvents | None:
        """Returns the changes since the last call, None where there are none."""

    def block_snapshot(self) -> BlockEvents:
        """Returns all reported blocks as stored now, each behind its parent; O(blocks)."""

    def track_block_uses(self) -> None:
        """Tells from now on which blocks and states are used, and names those a request lacks."""

    def take_block_uses(self) -> BlockUses | None:
        """Returns the blocks that were computed or found since the last call; None for none.

        Their content stays until the next plan is carried out.
        """

    def take_state_uses(self) -> list[tuple[bytes, int, bool]]:
        """Returns the states that were saved or loaded since the last call.

        Each has its name, its snapshot, and whether a request begins with it. Their content stays
        until the next plan is carried out.
        """

    def missing_blocks(self, request_id: int) -> MissingBlocks:
        """Names the blocks that a new request lacks and may read from a store.

        There are none where it could not begin behind them: without memory for snapshots of
        recurrent states.
        """

    def stored_blocks(self, request_id: int, store: PrefixStore) -> MissingBlocks:
        """Names the blocks of the longest beginning of a new request that a store has all of.

        It has all that the token behind them sees, and the recurrent state. There are none if the
        prefix cache knows as much.
        """

    def block_names(self, request_id: int, first: int) -> MissingBlocks:
        """Names the full blocks of a new request from a block index on.

        There are none if it may not write them.
        """

    def predict_prompt(self, start: int, count: int) -> int | None:
        """Returns the nanoseconds to compute tokens of a prompt; None before any was measured."""

    def hold(self, now: int, request_id: int) -> bool:
        """Keeps a new request out of the queue; returns False if it is not a new one in it."""

    def release_held(self, now: int, request_id: int) -> None:
        """Lets a held request into the queue; nothing if it has ended."""

    def insert_blocks(self, request_id: int, first: int, count: int) -> list[int] | None:
        """Makes free blocks known as those of a held request, from the number `first` on.

        Returns:
            At most `count` blocks to be filled before the next plan is carried out; 0 stands for
            one that is known already. None if the request is not held any more.
        """

    def insert_state(self, request_id: int) -> int | None:
        """Makes a snapshot known as the state behind the last full block of a held request.

        Returns:
            The snapshot to be filled before the next plan is carried out. None if the request is
            not held any more, or if there is nothing to fill.
        """

    def remove_adapter(self, slot: int) -> None:
        """Reports the blocks of an adapter that is unloaded as removed; O(blocks)."""

    def with_adapter(self, slot: int) -> list[int]:
        """The requests that use an adapter, also those of steps in flight that have ended."""

    def flush(self) -> None:
        """Lets the requests that wait now run in a partial batch (static, dynamic)."""

    def load(self) -> Load: ...
    def explain(self, request_id: int) -> Waiting | None:
        """Tells how a request stands; None if it has ended or never was."""

    def waiting_of(self, tenant: str, max_requests: int) -> tuple[list[tuple[int, Waiting]], int]:
        """Returns the waiting requests of a tenant in the order of the queue.

        Returns:
            The first `max_requests` of them by id, and how many there are. Takes time in
            `max_requests`, and in the number of preempted requests, suspended requests and tenants.
        """

    def block_map(self, tenant: str) -> bytes:
        """Returns how the KV blocks are used, `[C, 5]` of 32 bits, over at most 512 equal cells.

        Returns:
            Of each cell: blocks held by requests, of these those of the tenant, of these those that
            several share, blocks that only the prefix cache knows, and free ones. O(cells).
        """

    def check_invariants(self) -> None:
        """Raises InvariantError if the state is broken; O(blocks)."""

@final
class Router:
    """Chooses a replica for each request, by what it has cached and how much it has to do."""

    def __new__(cls, *, routing: str, num_replicas: int, names_per_replica: int, seed: int) -> Self:
        """Make a router whose replicas are all up and have nothing cached.

        Args:
            routing: "round-robin", "least-load", "prefix" or "both".
            num_replicas: 1 to 4,096.
            names_per_replica: Names that a replica's cache holds.
            seed: Of ties.

        Raises:
            ConfigError: A setting is out of range.
        """

    def route(
        self,
        names: NDArray[np.int64],
        tokens_per_name: int,
        num_tokens: int,
        among: Sequence[int] | None = None,
    ) -> tuple[int, int] | None:
        """Choose a replica; return the number of the request in flight, and the replica.

        None: no replica is up.

        Args:
            names: int64 `[num_names]`, of the prompt's first blocks: equal ones mean equal
                beginnings.
            tokens_per_name: Tokens that a name stands for.
            num_tokens: Length of the prompt.
            among: The replicas that may have it, in ascending order; default: all.
        """

    def end(self, request: int) -> None:
        """Note that a request ended; raises ValueError for one that is not in flight."""

    def report(self, replica: int, num_requests: int) -> None:
        """Note how many requests a replica says it has, those of other routers among them."""

    def leave(self, replica: int) -> None:
        """Send no more requests to a replica, and forget what it had cached."""

    def join(self, replica: int) -> None:
        """Send requests to a replica, whose cache is empty."""

    def num_in_flight(self, replica: int) -> int:
        """Return the requests of this router that a replica has."""

@final
class Fleet:
    """A run of a trace over many schedulers behind routers, on a virtual clock."""

    def __new__(
        cls,
        scheduler: Scheduler,
        requests: NDArray[np.int64],
        names: NDArray[np.int64],
        flushes: Sequence[int],
        *,
        tokens_per_name: int,
        step_time: tuple[float, float, float],
        num_replicas: int,
        routing: str,
        seed: int,
        num_routers: int = 1,
        lag: int = 0,
        report_interval: int | None = None,
        failures: tuple[float, int, int] | None = None,
        autoscale: tuple[int, int, int, int, int] | None = None,
        roles: tuple[int, float] | None = None,
    ) -> Self:
        """Make a fleet before its first request.

        Args:
            scheduler: Each replica has one of the same settings.
            requests: int64 `[num_requests * 12]`: arrival, tokens of prompt and answer, number of
                names, tenant, queue timeout, time to first token, time limit, priority, whether
                the cache is read and written, time of a cancel. Times are nanoseconds, and a
                negative one is none.
            names: int64, of all requests, one after another.
            flushes: Times at which the input ended.
            tokens_per_name: Tokens that a name stands for.
            step_time: Seconds of a step, of each token in it, of each token of context.
            num_replicas: 1 to 4,096; with `autoscale` at most.
            routing: As of `Router`.
            seed: Of all draws.
            num_routers: They take turns, and each knows its own requests only.
            lag: From a router to a replica, and back.
            report_interval: How often replicas report their load; None is never.
            failures: Losses of a replica per hour, time to their detection, to its restart.
            autoscale: Replicas at least, requests in flight of each, delays of more and of fewer
                replicas, time of a start.
            roles: How many of the replicas compute prompts for the others, and the seconds in which
                keys and values of a token go from one to another.

        Raises:
            ConfigError: A setting is out of range.
            ValueError: A number of a request is.
        """

    def run(self, num_events: int) -> bool:
        """Handle up to so many events; False when nothing is left."""

    def result(self) -> FleetRun:
        """Return what has happened so far."""

    def ceiling(self) -> int:
        """Return how many names of prompts one cache without bounds would have found."""

@final
class FleetRun:
    """What a fleet has done so far."""

    progress: bytes
    """int64 `[num_requests, 5]`: time of the first token and of the end, of which -1 is never,
    tokens of the answer, found tokens of the prompt, the last replica it was sent to."""
    gaps: bytes
    """int64 `[num_gaps, 2]`: nanoseconds between two tokens, and how often that occurred."""
    replica_tokens: list[int]
    """Tokens that each replica computed."""
    num_steps: int
    num_rows: int
    """Rows that computed something, summed over the steps."""
    kv_waste: float
    """Unwritten share of the allocated KV slots, summed over the steps."""
    unanswered: dict[str, int]
    """Requests without an answer, by reason."""
    num_names: int
    """Names of answered prompts that could be found."""
    num_found: int
    """Names that the replicas' caches had."""
    num_resent: int
    num_losses: int
    max_replicas: int
    replica_s: float
    """Time that each replica was there, summed."""
    num_transferred_tokens: int
    """Tokens of prompts that prefill replicas computed for others."""
    num_whole: int
    """Prompts whose blocks all came."""
    num_partial: int
    """Prompts of which blocks did not come in time."""
    num_local: int
    """Long prompts that were computed where they are, since too many waited."""

def apply_plan(
    plan: Tensor,
    block_size: int,
    *,
    computed: Tensor,
    last_token: Tensor,
    row_slot: Tensor,
    row_index: Tensor,
    row_adapter: Tensor,
    block_tables: Tensor,
    rows: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sample_rows: Tensor,
    score_rows: Tensor,
    score_targets: Tensor,
    adapters: Tensor,
) -> tuple[int, int, int, int, int]:
    """Applies a plan's differences to the runner's tables and derives the inputs of its step.

    All tensors are int32. R rows, T tokens and S sample slots are the plan's; the outputs must hold
    at least that many.

    Args:
        plan: From `Scheduler.schedule`.
        block_size: Tokens of a KV block.
        computed: Table `[max_num_seqs]`: tokens whose KV is written; advanced by this step's.
        last_token: Table `[max_num_seqs]`: last sampled token.
        row_slot: Table `[max_num_seqs]`: request slot of each row.
        row_index: Table `[max_num_seqs]`: which of the n answers.
        row_adapter: Table `[max_num_seqs]`: slot of the request's adapter, 0 for none.
        block_tables: Table `[num_kv_groups, max_num_seqs, max_blocks_per_row]`.
        rows: Out `[R]`.
        input_ids: Out `[T]`.
        positions: Out `[T]`.
        slot_mapping: Out `[num_kv_groups, max_num_batched_tokens]`, the first T of each line:
            block * block_size + offset.
        query_start_loc: Out `[R + 1]`.
        seq_lens: Out `[R]`: tokens of the row after this step.
        sample_rows: Out `[S]`: index into T.
        score_rows: Out `[N]`: the tokens of prompts behind which the next gets a log probability,
            as indices into T.
        score_targets: Out `[N]`: the tokens that get it.
        adapters: Out `[T]`: slot of each token's adapter.

    Returns:
        R, T, S, N, and how many of the rows have an adapter.
    """

def attention_work(
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    work: Tensor,
    tiles: Tensor,
    *,
    num_kv_heads: int,
    group: int,
    split_len: int,
    decode_rows: int,
    tile_rows: int,
    window: int,
) -> tuple[int, int, int]:
    """Cuts the attention of a step into work for a GPU; see `attention_work.rs`.

    All tensors are int32. A row with few queries is cut into splits of its tokens, one with many
    into tiles of its queries; a row that `work` has no room for becomes tiles too.

    Args:
        rows: `[R]`: line of each row in the block tables.
        query_start_loc: `[R + 1]`: where each row's tokens start.
        seq_lens: `[R]`: tokens of each row after this step; a row without queries is padding.
        work: Out, entries of 8: line of the row, KV head, first token of the split, index of the
            split, first query, queries and tokens of the row, 0.
        tiles: Out, entries of 3: row, KV head, first packed row.
        num_kv_heads: Of the layer.
        group: Query heads of a KV head; a query is as many packed rows.
        split_len: Tokens of a split of a long row; a row of at most 16 shorter splits has those.
        decode_rows: A row goes to decode if it has at most so many packed rows.
        tile_rows: Packed rows of a tile.
        window: A token sees itself and the `window - 1` before it; 0 sees all.

    Returns:
        Entries of `work` and of `tiles`, and the most packed rows of a row in `work`.
    """

# --- kernels --------------------------------------------------------------------------------
# Activations are float32 or bfloat16, all of one call alike; accumulation is float32. Tensors are
# contiguous except where a row stride (`stride(0)`) larger than the row is said to be fine. What is
# written lies in memory that can be; a view that negates its memory (`is_neg()`) is refused.

@final
class LowRank:
    """What an adapter (LoRA) adds to a layer: `scale * x A^T B^T` for ranges of its outputs."""

    def __new__(
        cls,
        in_features: int,
        out_features: int,
        parts: Sequence[tuple[int, float, Tensor, Tensor]],
    ) -> Self:
        """Packs the parts.

        Args:
            in_features: Of the layer.
            out_features: Of the layer.
            parts: The first output, the scale, A `[rank, in_features]` and B `[outputs, rank]`,
                float32 or bfloat16; outputs rise from part to part. No part changes nothing.

        Raises:
            MemoryError: There is no memory for them.
        """

@final
class AdapterTable:
    """The adapters of a layer by slot, from 1 on; slot 0 is the layer alone."""

    def __new__(cls, num_slots: int) -> Self: ...
    def set(self, slot: int, update: LowRank | None) -> None:
        """Puts an update into a slot, or empties it: also between two runs of a recording."""

    def add(self, x: Tensor, out: Tensor, adapters: Tensor, selected: Tensor | None = None) -> None:
        """Adds to rows of `out` `[R, out_features]` what their adapters make of `x`.

        The bits of a row depend on that row and its adapter alone; rows of slot 0 keep theirs.

        Args:
            x: `[R, in_features]`, float32 or bfloat16.
            out: The same; rows may be strided.
            adapters: int32 `[T]`: the slot of each token.
            selected: int32 `[R]`: the token of each row; None where rows are tokens.

        Raises:
            ValueError: A slot has no adapter.
        """

def low_rank_bytes(out_features: int, in_features: int, rank: int, item_size: int) -> int:
    """Return the bytes of a part of a `LowRank`; 4 is the item size of float32, 2 of bfloat16."""

@final
class Linear:
    """y = x W^T + b with weights packed once; the bits of a row do not depend on the others."""

    def __new__(
        cls, weight: Tensor, bias: Tensor | None = None, quantize: str | None = None
    ) -> Self:
        """Packs `weight` `[out_features, in_features]` and `bias` `[out_features]`.

        Args:
            weight: float32 or bfloat16.
            bias: Of the same dtype.
            quantize: `int8` or `int4`; None keeps the dtype. See `tests/kernels/reference.py`.

        Raises:
            MemoryError: There is no memory for the packed weights.
        """

    @staticmethod
    def from_blocks(blocks: Tensor, block_type: str, bias: Tensor | None = None) -> Linear:
        """Packs weights that are stored in the blocks of a GGUF file; their values stay the same.

        Args:
            blocks: uint8 `[out_features, bytes of a row]`.
            block_type: `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q4_K`, `Q5_K` or `Q6_K`.
            bias: float32 `[out_features]`.

        Raises:
            ValueError: The type is unknown, or a row is not a whole number of blocks.
            MemoryError: There is no memory for the packed weights.
        """

    in_features: int
    out_features: int

    def forward(self, x: Tensor, out: Tensor) -> None:
        """Computes `out` `[T, out_features]` from `x` `[T, in_features]`; its rows may be strided.

        `x` and `out` may each be float32 or bfloat16; those of a float32 layer are float32.
        """

def row_bytes(block_type: str, num_weights: int) -> int | None:
    """The bytes of a row in blocks; None if its weights are no whole blocks.

    Where 128 weights are not left, rows of INT8_ROTATED_128 and INT4_ROTATED_128 end with blocks of
    INT8_ROTATED and INT4_ROTATED.

    Raises:
        ValueError: The type is unknown.
    """

def row_weights(block_type: str, num_bytes: int) -> int | None:
    """The weights of a row in blocks; None if its bytes are no whole blocks.

    Raises:
        ValueError: The type is unknown.
    """

def dequantize(blocks: Tensor, block_type: str, out: Tensor) -> None:
    """Writes the weights of `blocks` uint8 `[N, bytes of a row]` to `out` float32 `[N, K]`.

    Raises:
        ValueError: The type is unknown, or the shapes do not fit each other.
    """

def quantize(weight: Tensor, block_type: str, out: Tensor) -> None:
    """Quantizes `weight` float32 `[N, K]` to blocks in `out` uint8 `[N, bytes of a row]`.

    Raises:
        ValueError: The type is not Q8_0, Q4_1, INT8_ROTATED, INT8_ROTATED_128 or INT4_ROTATED, or
            the shapes do not fit each other.
    """

def rotate(x: Tensor) -> None:
    """Rotates the rows of `x` float32 `[N, K]` in place, as rotated layers do with their inputs."""

def linear_bytes(
    out_features: int, in_features: int, item_size: int, weight_format: str | None = None
) -> int:
    """Bytes that a `Linear` of these shapes takes.

    Args:
        out_features: Outputs.
        in_features: Inputs.
        item_size: Of a number in bytes: 4 is float32, 2 bfloat16.
        weight_format: `quantize` or `block_type` of the layer; None keeps the dtype.

    Raises:
        ValueError: The format is unknown, or no memory is so large.
    """

@final
class Experts:
    """A mixture of experts and its router; the bits of a row do not depend on the others."""

    def __new__(
        cls,
        gate_up: Sequence[Linear],
        down: Sequence[Linear],
        *,
        top_k: int,
        scores: str,
        activation: str = "silu",
        bias: Sequence[float] | None = None,
        min_weight_sum: float | None = None,
        multiplier: float = 1.0,
        limit: float | None = None,
        alpha: float = 1.0,
        gated: bool = True,
        factors: Sequence[float] | None = None,
    ) -> Self:
        """Takes the layers of each expert.

        Args:
            gate_up: From H to gate and up, side by side; to up alone without a gate. They may have
                a part of the columns of each.
            down: From I to H, or to a part of it.
            top_k: Experts of a token.
            scores: What weighs an expert: `softmax` over all, `softmax_of_chosen` or `sigmoid`.
            activation: As of `activate`.
            bias: Of each expert, added to the scores for the choice alone.
            min_weight_sum: The weights of a token are divided by their sum, which is at least this.
            multiplier: Of the weights.
            limit: Gates are at most this, ups at most as far from 0, and get 1 more; the gate is
                gate * sigmoid(alpha * gate).
            alpha: Of that.
            gated: Whether there is a gate.
            factors: Of the weight of each expert.

        Raises:
            ValueError: The layers do not fit each other, or a name is unknown.
        """

    def forward(self, x: Tensor, logits: Tensor, out: Tensor) -> None:
        """Computes `out` `[T, H]` from `x` `[T, H]` and float32 `logits` `[T, num_experts]`."""

    def inside(self, x: Tensor, logits: Tensor, out: Tensor) -> None:
        """Computes the numbers `out` float32 `[T * top_k, part of I]` inside of experts.

        Their order depends on `logits` alone.
        """

    def outside(self, x: Tensor, logits: Tensor, out: Tensor) -> None:
        """Computes `out` `[T, part of H]` from the numbers `x` float32 `[T * top_k, I]`.

        They are those of `inside`, for all columns.
        """

class RankError(CoreError):
    """The group of ranks has ended: one of them failed, ended, or did not arrive in time."""

RANK_MESSAGE_HEADER: int
"""Numbers before those of a message in its place."""

def num_rank_words(num_ranks: int) -> int:
    """Returns the int32 numbers that the barrier of so many ranks takes."""

@final
class RankGroup:
    """One rank of the processes that compute a model; see `RankListener` for other hosts.

    `gather` and `send` wait for the other ranks with a bound, `receive` as long as it takes; none
    of them holds the GIL meanwhile.
    """

    def __new__(
        cls,
        words: Tensor,
        messages: tuple[Tensor, Tensor],
        areas: Sequence[tuple[Tensor, Tensor]],
        rank: int,
        spin_s: float,
        timeout_s: float,
    ) -> Self:
        """Takes views of the memory that ranks of one machine share.

        Args:
            words: int32 `[num_rank_words(num_ranks)]`, zeros when the first rank comes.
            messages: int32 `[N]` each: where rank 0 writes its messages in turn.
            areas: uint8 `[B]` each: where each rank writes in turn what the others read.
            rank: The number of this one.
            spin_s: How long it waits before it sleeps.
            timeout_s: How long it waits for another rank that computes.
        """

    def gather(self, x: Tensor, out: Tensor, widths: Sequence[int]) -> None:
        """Computes `out` `[T, sum(widths)]` from the `x` `[T, widths[rank]]` of all ranks.

        A `Recording` can keep it.

        Raises:
            RankError: The group has ended.
        """

    def send(self, message: Tensor) -> None:
        """Sends a message, int32 `[N]`, to all other ranks, each of which must `receive`.

        Raises:
            RankError: The group has ended.
            ValueError: The message has no room.
        """

    def receive(self, out: Tensor) -> int | None:
        """Waits for the next message, however long, and writes it to `out`, int32.

        Returns:
            The length of the message; None where the group was closed in order.

        Raises:
            RankError: The group has ended otherwise, or the message is not the one that was sent.
        """

    def close(self) -> None:
        """Ends the group in order."""

    def fail(self, rank: int, *, has_ended: bool = False) -> None:
        """Ends the group because of a rank, whose process may be gone; the first cause stays."""

    @property
    def fault(self) -> str | None:
        """Why the group has ended; None while it has not."""

    @staticmethod
    def join(
        leader: str,
        key: bytes,
        rank: int,
        join_timeout_s: float,
        spin_s: float,
        timeout_s: float,
    ) -> RankGroup:
        """Joins a group whose rank 0 listens on another host.

        Args:
            leader: Where, `HOST:PORT`.
            key: That of rank 0.
            rank: The number of this one.
            join_timeout_s: How long it waits for ranks that have not joined.
            spin_s: How long it waits before it sleeps.
            timeout_s: How long it waits for another rank that computes.

        Raises:
            RankError: Rank 0 does not listen, or the others do not join in time.
            ValueError: Rank 0 has another key, or does not expect such a rank.
        """

    def tell(self, rank: int, text: str) -> None:
        """Sends a text to one rank on another host, which must `hear` it.

        Raises:
            RankError: The group has ended.
        """

    def hear(self, rank: int, timeout_s: float) -> str:
        """Waits for a text of one rank on another host.

        Raises:
            RankError: The group has ended, or the rank says nothing in time.
        """

@final
class RankListener:
    """Where rank 0 waits for ranks of other hosts."""

    def __new__(cls, address: str, key: bytes) -> Self:
        """Listens on an address, `HOST:PORT`.

        Raises:
            OSError: It cannot.
        """

    @property
    def address(self) -> str:
        """Where it listens, also where port 0 asked for any."""

    def meet(
        self, num_ranks: int, join_timeout_s: float, spin_s: float, timeout_s: float
    ) -> RankGroup:
        """Waits until all other ranks have joined; see `RankGroup.join`.

        Raises:
            RankError: One does not join in time, or ends.
        """

@final
class Recording:
    """Calls of kernels that are kept, to be computed without Python: a CPU's captured graph.

    Inside `with`, what this thread calls of the kernels below and of `Linear.forward` is kept and
    not computed. The calls keep their tensors; only what these contain may change between two runs.
    While a run is under way no other thread may resize one of them or move it to shared memory, as
    with any operator of PyTorch.
    """

    def __new__(cls) -> Self: ...
    def __enter__(self) -> Self:
        """Begins; `RuntimeError` if this thread is recording already, or this has its calls."""

    def __exit__(self, *raised: object) -> None:
        """Ends that; calls before an exception are dropped.

        Raises:
            RuntimeError: It did not begin on this thread; what that thread keeps stays as it is.
        """

    def run(self) -> None:
        """Computes all calls in their order.

        Raises:
            RuntimeError: There are none yet, another run is under way, or a tensor has other
                memory, another dtype, shape or strides than when it was recorded.
            ValueError: As the call itself; those before it are computed.
            MemoryError: An allocation failed.
        """

def select_rows(x: Tensor, rows: Tensor, out: Tensor, multiplier: float = 1.0) -> None:
    """Writes `multiplier * x[rows]`; `x` `[N, H]`, `rows` int32 `[T]`, `out` `[T, H]`."""

def add_scaled(x: Tensor, update: Tensor, multiplier: float = 1.0) -> None:
    """Adds `multiplier * update` `[T, H]` to `x` in place."""

def gate_by_sigmoid(x: Tensor, gate: Tensor) -> None:
    """Multiplies `x` `[T, W]` in place by the sigmoid of `gate` `[T, W]`, or float32 `[T, 1]`."""

def causal_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    gates: tuple[Tensor, Tensor] | None = None,
    has_silu: bool = False,
) -> None:
    """Convolves each channel of `x` `[T, C]` along the tokens of its row, into `out` `[T, C]`.

    `weight` float32 `[K, C]`; `state` float32 `[states, K - 1, C]` moves on: row `rows[r]` by the
    tokens from `starts[r]` on, after which it has `lens[r]` tokens.
    """

def copy_states(state: Tensor, moves: Tensor) -> None:
    """Copies rows of float32 `state` `[rows, ...]`: `moves` int32 `[., 2]` has targets and sources.

    No row is the target of two, or target and source.
    """

def gated_delta(
    qkv: Tensor,
    gate: Tensor,
    beta_alpha: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    max_beta: float,
    interleaved_heads: bool,
    state: Tensor,
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    out: Tensor,
) -> None:
    """Computes the gated delta rule of each head along the tokens of its row.

    Value head n has key head `n % num_key_heads` if `interleaved_heads`; else neighbours share one.
    `state` float32 `[states, num_value_heads, key_dim, value_dim]` moves on, as of `causal_conv`.
    """

def selective_scan(
    xbc: Tensor,
    dt: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    num_groups: int,
    state: Tensor,
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    out: Tensor,
) -> None:
    """Computes the selective scan of each head along the tokens of its row.

    `state` float32 `[states, num_heads, state_dim, head_dim]` moves on, as of `causal_conv`.
    """

def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor | None, group_size: int, eps: float
) -> None:
    """Makes `x` `[T, W]` `x * silu(gate)`, or the norm of that, each group of numbers apart."""

def scale(x: Tensor, multiplier: float = 1.0, soft_cap: float | None = None) -> None:
    """Multiplies `x` `[T, W]` in place, then makes it soft_cap * tanh(x / soft_cap)."""

def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, offset: float = 0.0) -> None:
    """Writes x / rms(x) * (weight + offset); `x`, `out` `[T, H]`, `weight` `[H]`.

    With a `weight` `[D]` each D numbers of a row are normed apart.
    """

def add_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, eps: float, out: Tensor, offset: float = 0.0
) -> None:
    """Adds `update` `[T, H]` to `x` in place, then writes the norm of the sum as `rms_norm`."""

def rope(
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_offset: float = 0.0,
    is_interleaved: bool = False,
) -> None:
    """Rotates `x` `[T, num_heads, head_dim]` in place, after an RMS norm if given.

    Of the first `rotary_dim` numbers of a head, d and d + rotary_dim / 2 make a pair, as in Llama.

    Args:
        x: Rows may be strided.
        positions: int32 `[T]`.
        cos_sin: float32 `[max_position, rotary_dim]`: cosines, then sines; 0 numbers rotate none.
        norm_weight: `[head_dim]` for a norm of each head, `[num_heads * head_dim]` for one of all.
        eps: Of that norm.
        norm_offset: Added to its weight.
        is_interleaved: 2 d and 2 d + 1 make a pair.
    """

def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    """Writes (x - mean(x)) / deviation(x) * weight + bias; shapes as `rms_norm`, `bias` `[H]`."""

def add_layer_norm(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor
) -> None:
    """Adds `update` `[T, H]` to `x` in place, then writes the norm of the sum as `layer_norm`."""

def activate(x: Tensor, activation: str, out: Tensor) -> None:
    """Writes activation(x) to `out`, both `[T, I]`.

    Args:
        x: Rows may be strided.
        activation: `silu`, `gelu` (by erf), `gelu_tanh` or `relu2`.
        out: Where the result goes.
    """

def activate_mul(gate_up: Tensor, activation: str, out: Tensor, up: Tensor | None = None) -> None:
    """Writes activation(gate) * up to `out` `[T, I]`; `gate_up` `[T, 2 I]` holds both side by side.

    Args:
        gate_up: Rows may be strided.
        activation: As of `activate`.
        out: Where the result goes.
        up: `[T, I]`, where they lie apart: `gate_up` `[T, I]` holds the gates alone.
    """

def kv_write(
    key: Tensor, value: Tensor, cache: Tensor, slot_mapping: Tensor, block_size: int
) -> None:
    """Writes keys and values `[T, num_kv_heads, head_dim]` to one layer's cache.

    Args:
        key: After RoPE; rows may be strided.
        value: As projected; rows may be strided.
        cache: `[num_blocks, num_kv_heads, 2 * block_size * head_dim]`, see `attention.cpu`.
            head_dim is a multiple of 16 up to 512; blocks may lie apart.
        slot_mapping: int32 `[T]`.
        block_size: 16.
    """

def full_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    out: Tensor,
    *,
    num_heads: int,
    scale: float,
    reach: int | None = None,
    bias: Tensor | None = None,
) -> None:
    """Writes the attention of each token to all tokens of its sequence, before and after it.

    Args:
        query: `[T, num_heads * head_dim]`, as `out`; rows may be strided.
        key: `[T, num_kv_heads * head_dim]`; sequences lie one behind the other.
        value: As the key.
        starts: int32 `[S + 1]`: where each sequence begins, and T.
        out: Where the result goes.
        num_heads: Of queries; a divisor of it is that of keys and values.
        scale: Factor of the scores.
        reach: A token sees those at most so far before and after it; None sees all.
        bias: float32 `[num_heads, 2 M - 1]`, added to the scores by distance: key - query + M - 1.
    """

def paged_attention(
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    *,
    scale: float,
    block_size: int,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Causal attention of a ragged batch over paged keys and values, chunks and decodes alike.

    Args:
        query: `[T, num_heads, head_dim]`, rows may be strided.
        cache: As in `kv_write`; this step's keys and values are already there.
        block_table: int32 `[max_num_seqs, max_blocks_per_row]`.
        rows: int32 `[R]`, lines of `block_table`.
        query_start_loc: int32 `[R + 1]`.
        seq_lens: int32 `[R]`; the queries of a row are its last tokens.
        out: `[T, num_heads, head_dim]`.
        scale: Positive; usually head_dim ** -0.5.
        block_size: 16.
        window: A token sees itself and the `window - 1` before it.
        soft_cap: A score s becomes soft_cap * tanh(s / soft_cap).
        sinks: float32 `[num_heads]`: the score of one more token, whose value is zero.
    """

def transfer_limit(predicted: int | None, start_within: int | None) -> int:
    """Return how long a transfer may take, in nanoseconds.

    Args:
        predicted: How long computing here is predicted to take, in nanoseconds; None is unknown.
        start_within: How long the request may wait, in nanoseconds; half of it is left for
            computing here.
    """

def matched_names(
    patterns: Sequence[str], names: Sequence[str]
) -> tuple[list[list[int]], list[bool]]:
    """Finds what patterns of a JSON schema match: it may take long, and end the process.

    Returns:
        Of each pattern the positions of the names that it matches, and whether it matches no other
        text.

    Raises:
        ValueError: A pattern is none, or has too many states to tell.
    """

def json_shape(text: bytes) -> tuple[int, int]:
    """Counts the lists and objects of a JSON text, without the interpreter's lock.

    Returns:
        How many there are outside of strings, and how many are open at once at most.
    """

def value_size(value: object, limit: int) -> tuple[int, int]:
    """Measures a value that a client sent, with all that it holds, in time linear in it.

    Lists, tuples, mappings and dataclasses are walked. The walk ends behind `limit` characters; a
    value that holds itself has more than any limit.

    Returns:
        The characters of its JSON text, and its bytes in memory; about.
    """

def match_all(patterns: Sequence[str], names: Sequence[str]) -> bool:
    """Returns whether each text is one of the names or matched by a pattern, as `matched_names`."""

@final
class Grammar:
    """A compiled constraint."""

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""

@final
class GrammarCompiler:
    """Compiles constraints over the tokens of a model; any thread may use it.

    The first constraint reads the whole vocabulary. Each is compiled on a thread of its own.
    """

    def __new__(
        cls, token_table: TokenTable, end_ids: Sequence[int], *, stack_bytes: int = ...
    ) -> Self:
        """Keeps what constraints are compiled against.

        Args:
            token_table: Of the model.
            end_ids: Tokens that end a text.
            stack_bytes: Of the threads that compile; one that overflows ends the process.
        """

    def compile(self, kind: str, text: str = ..., choices: Sequence[str] = ...) -> Grammar:
        """Compiles a constraint, without the interpreter's lock.

        Args:
            kind: `json_schema`, `json_object`, `regex`, `lark` or `choices`.
            text: The schema, the expression or the grammar.
            choices: Texts to choose from.

        Raises:
            ValueError: With the parser's message: it is no grammar, or too large a one.
        """

@final
class Constraints:
    """The constraints of sequences by slot: where each is in its grammar.

    The state at a position is a function of the output tokens before it.
    """

    def __new__(cls, num_slots: int, *, has_idle_cores: bool = False) -> Self:
        """Constrain no sequence.

        Args:
            num_slots: Of sequences.
            has_idle_cores: Masks are computed while a step is; otherwise after it, on all cores.
        """

    def __len__(self) -> int:
        """Sequences that have one."""

    def begin(
        self,
        slot: int,
        request_id: int,
        index: int,
        grammar: Grammar,
        num_prompt_tokens: int,
        *,
        ends_early: bool = True,
    ) -> None:
        """Begins a sequence in a slot; what the slot held is forgotten.

        Args:
            slot: Of the scheduler.
            request_id: Of its request.
            index: Which of the answers.
            grammar: Its constraint.
            num_prompt_tokens: Position of its first output token.
            ends_early: Whether a token that ends a text is allowed where the grammar may end, and
                not only where it must.

        Raises:
            IndexError: There is no such slot.
        """

    def clear(self, slot: int) -> None:
        """Takes the constraint of a slot away, if it has one."""

    def set_ends_early(self, slot: int, ends_early: bool) -> None:
        """Sets where the sequence of a slot may end, if it has a constraint."""

    def start(self, slots: Tensor, position: Tensor, last_tokens: Tensor) -> ConstraintMasks | None:
        """Begins the masks of a step, on other threads where cores are idle; None without any.

        Args:
            slots: int32 `[S]`, of the sequence of each draw; draws of one stand together, in order.
            position: int32 `[S]`, of the token that is drawn.
            last_tokens: int32 `[S]`, the token before it: the last or a draft.
        """

    def observe(self, events: Events, drafts: bool) -> Drafts | None:
        """Follows what a step gave: answers grow or end.

        Args:
            events: Of the scheduler.
            drafts: Whether to look for tokens that the grammars force.

        Returns:
            What the grammars force behind the new tokens, for `Scheduler.draft_all`.
        """

@final
class ConstraintMasks:
    """The masks of a step; `sample` waits for them, or computes them."""

    def allowed(self) -> list[list[int] | None]:
        """Return the tokens that each draw may give, once they are known; None is all."""

@final
class Undrafted:
    """An answer that a draft model may draft for."""

    request_id: int
    index: int
    slot: int
    num_prompt: int
    """Tokens of its prompt."""
    num_output: int

@final
class Drafts:
    """Tokens that are likely to follow: request, answer and tokens of each."""

    def __iter__(self) -> Iterator[tuple[int, int, list[int]]]: ...

@final
class SamplerStates:
    """What sequences ask for beside temperature, top_k, top_p, min_p, and their tokens, by slot.

    The tokens that a draw at a position sees are those before it: the prompt as given to `set`,
    each token that `sample` drew, and the drafts before the draw.
    """

    def __new__(cls, num_slots: int) -> Self: ...
    def set(
        self,
        slot: int,
        prompt: Sequence[int],
        *,
        allowed_ids: Sequence[int] | None = None,
        banned_ids: Sequence[int] = ...,
        bad_words: Sequence[Sequence[int]] = ...,
        end_ids: Sequence[int] = ...,
        no_end_before: int = 0,
        logit_bias: Sequence[tuple[int, float]] = ...,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_last_n: int | None = None,
        dry_breakers: Sequence[bytes] = ...,
        top_n_sigma: float = 0.0,
        typical_p: float = 1.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        num_candidates: int = 0,
        token_table: TokenTable | None = None,
    ) -> None:
        """Begins a sequence in a slot.

        Args:
            slot: Of the scheduler.
            prompt: Its tokens.
            allowed_ids: Only these are drawn; None allows all.
            banned_ids: These are never drawn.
            bad_words: Of each, the last token is not drawn behind the others.
            end_ids: Not drawn before `no_end_before`, unless nothing else is allowed.
            no_end_before: A position.
            logit_bias: Added to the logits of these ids.
            repetition_penalty: Divides positive logits of tokens in prompt or output, multiplies
                others; 1 is off.
            presence_penalty: Subtracted for tokens in the output.
            frequency_penalty: Subtracted as often as a token is in the output.
            dry_multiplier: Of the penalty of a token that would continue a repeated sequence.
            dry_base: That penalty is `multiplier * base ** (length - allowed_length)`.
            dry_allowed_length: The longest sequence that may be repeated.
            dry_last_n: So many tokens at the end are looked at; None is all.
            dry_breakers: No sequence reaches over these texts.
            top_n_sigma: Logits more than so many standard deviations below the largest are
                dropped; 0 is off.
            typical_p: Share of the tokens whose surprise is nearest to the expected; 1 is off.
            xtc_probability: Of dropping all but the least likely of the tokens above the threshold.
            xtc_threshold: A probability.
            num_candidates: The likeliest tokens to report with each draw.
            token_table: Of the model; needed for DRY alone.

        Raises:
            IndexError: There is no such slot.
            ValueError: DRY lacks the table.
        """

    def set_no_end(self, slot: int, end_ids: Sequence[int], before: int) -> None:
        """Replaces the ids that are not drawn before a position."""

    def clear(self, slot: int) -> None:
        """Ends the sequence of a slot: its draws cost nothing from now on."""

@final
class Candidates:
    """The likeliest tokens of the draws of a step, by the logits as the model gave them."""

    @staticmethod
    def of_draws(ids: Tensor, logprobs: Tensor) -> Candidates:
        """Return those that a device has found: int32 and float32 `[S, stride]`."""

    @staticmethod
    def joined(parts: Sequence[tuple[Candidates | None, int]]) -> Candidates | None:
        """Return those of the parts of a step, in order: each with its number of draws."""

    def of(self, draw: int, count: int) -> tuple[list[int], list[float]]:
        """Return ids and log probabilities of a draw, the likeliest first."""

@final
class SequenceDraws:
    """The draws of a step on a device, of which some ask for more than what all draws have."""

    @staticmethod
    def of(
        states: SamplerStates, constraints: Constraints, slots: Tensor, position: Tensor
    ) -> SequenceDraws | None:
        """Return None where no draw asks for more; int32 `[S]` each, as of `sample`."""

    @property
    def needs_tokens(self) -> bool:
        """Whether a draw depends on the tokens before it."""

    def lists(self, last_tokens: Tensor, vocab_size: int) -> SampleLists:
        """Return what the draws ask for; waits for the masks of constraints.

        Draws of one sequence stand in the order of their positions: each sees the drafts before it.
        What draws had written behind them does not count.

        Args:
            last_tokens: int32 `[S]`, the token before each, a draft perhaps; a negative one says
                that its sequence has none, and that the draw does not count.
            vocab_size: Of the logits.

        Raises:
            ValueError: A draw is not behind the tokens that are known.
        """

    def record(self, tokens: Tensor) -> None:
        """Takes what was drawn, int32 `[S]`; a negative token is none."""

@final
class SampleLists:
    """What the draws of a step ask for, as the kernel `sample_options` reads it."""

    @property
    def num_entries(self) -> int:
        """Pairs of token and value."""

    @property
    def num_mask_words(self) -> int:
        """Numbers of 32 bits of all masks."""

    @property
    def num_candidates(self) -> int:
        """The most that a draw asks for."""

    def __len__(self) -> int:
        """Return the numbers that `write` writes."""

    def write(self, out: Tensor) -> None:
        """Writes rows `[S, 16]`, entries `[., 2]` and masks to the front of int32 `out`."""

def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    position: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    ranks: Tensor,
    *,
    scored: Tensor | None = None,
    states: SamplerStates | None = None,
    slots: Tensor | None = None,
    last_tokens: Tensor | None = None,
    mask: Tensor | None = None,
    mask_of_draw: Tensor | None = None,
    constraints: ConstraintMasks | None = None,
) -> Candidates | None:
    """Draws one token per row, from (seed, index, position), the row's logits and its state alone.

    The order: mask, allowed and banned ids, bad words, ends; logit bias; repetition, presence and
    frequency penalties; DRY; top_n_sigma; temperature; top_k; typical_p; top_p over what that
    leaves; min_p relative to the likeliest token; XTC; the draw.

    Args:
        logits: float32 `[S, vocab_size]`.
        temperature: float32 `[S]`, 0 is greedy (the lowest id among equals).
        top_k: int32 `[S]`, 0 is off.
        top_p: float32 `[S]`, 1 is off.
        min_p: float32 `[S]`, 0 is off.
        seed: int64 `[S]`, its 64 bits.
        index: int32 `[S]`, which of the n answers.
        position: int32 `[S]`, of the token that is drawn.
        tokens: Out int32 `[S]`; -1 where a row holds NaN, +inf or only -inf; -2 where masks and
            bans leave none; -3 where a constraint cannot be computed.
        logprobs: Out float32 `[S]`: log softmax of the raw logits at the token.
        ranks: Out int32 `[S]`: 1 is the likeliest.
        scored: int32 `[S]`, 0 where log probability, rank and candidates are not wanted: these are
            0 and none then. None wants all.
        states: Of the sequences; then `slots` and `last_tokens` are needed, too.
        slots: int32 `[S]`, of the sequence of each draw.
        last_tokens: int32 `[S]`, the token before the one that is drawn: the last or a draft.
        mask: int32 `[M, ceil(vocab_size / 32)]`: bit i % 32 of number i / 32 says that token i may
            be drawn.
        mask_of_draw: int32 `[S]`, the line of `mask` of each draw; -1 is none.
        constraints: Masks in place of these.

    Returns:
        The candidates, where a sequence asks for some.
    """

def score_tokens(
    logits: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    ranks: Tensor,
    candidate_ids: Tensor,
    candidate_logprobs: Tensor,
) -> None:
    """Scores tokens that are given; the bits of a row depend on its logits alone.

    Args:
        logits: float32 `[N, vocab_size]`.
        tokens: int32 `[N]`.
        logprobs: Out float32 `[N]`: log softmax at the token.
        ranks: Out int32 `[N]`: 1 is the likeliest.
        candidate_ids: Out int32 `[N, C]`: the likeliest tokens.
        candidate_logprobs: Out float32 `[N, C]`.

    Raises:
        ArithmeticError: A row holds NaN, +inf or only -inf.
    """

def cpu_features() -> str:
    """Instruction set that the kernels use here.

    `amx`, `avx512bf16`, `avx512vnni`, `avx512`, `avx2` or `portable`, best first. The environment
    variable `CHAIRLIFT_CPU` can name a lesser one.
    """

def read_memory(words: Tensor) -> int:
    """Reads int32 `words` with all threads; what it gives depends on every one.

    For `chairlift bench kernels`: no kernel reads faster.
    """

def multiply_in_registers(arithmetic: str, rounds: int) -> int:
    """Multiplies and adds in registers with all threads; gives the number of operations.

    Args:
        arithmetic: `float32`, `bfloat16`, `int8` or `int4`: the instructions of these linear layers
            on this machine.
        rounds: How long.
    """

def set_num_threads(num_threads: int) -> None:
    """Sets how many threads later kernel calls use, 1 to 1024; if never called all cores."""
