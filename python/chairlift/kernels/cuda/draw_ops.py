"""The operations that draw tokens, and keep them on the device; see `ops.py`."""

from ctypes import c_int, c_longlong

from torch import Tensor

from chairlift.kernels.cuda.launch import launcher_of
from chairlift.kernels.cuda.operation import operation
from chairlift.kernels.cuda.sources import kernel_name

_BLOCK_OF_A_ROW = (1024, 40960)
"""Threads and bytes of shared memory of a block that draws for a row."""


@operation("sample", "tokens", "logprobs", "ranks")
def sample(
    logits: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    ranks: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    position: Tensor,
) -> None:
    """Draw one token per row of `logits` float32 `[S, vocab_size]`; as `_core.sample`."""
    num_samples, vocab_size = logits.shape
    launcher_of(logits).launch(
        kernel_name("sample", logits.dtype),
        (num_samples, 1, 1),
        *_BLOCK_OF_A_ROW,
        logits,
        tokens,
        logprobs,
        ranks,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        index,
        position,
        c_int(vocab_size),
        c_longlong(logits.stride(0)),
    )


@operation(
    "sample_options",
    "logits",
    "tokens",
    "logprobs",
    "ranks",
    "candidate_ids",
    "candidate_logprobs",
    "saved",
)
def sample_options(
    logits: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    ranks: Tensor,
    candidate_ids: Tensor,
    candidate_logprobs: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    position: Tensor,
    rows: Tensor,
    entries: Tensor,
    saved: Tensor,
    masks: Tensor,
) -> None:
    """Draw as `sample`, where some rows ask for more.

    Args:
        logits: float32 `[S, vocab_size]`; afterwards what they were.
        tokens: int32 `[S]`: -1, -2 and -3 as of `_core.sample`.
        logprobs: float32 `[S]`.
        ranks: int32 `[S]`.
        candidate_ids: int32 `[S, n]`: the likeliest tokens of the rows that ask for them.
        candidate_logprobs: float32 `[S, n]`.
        temperature: float32 `[S]`.
        top_k: int32 `[S]`.
        top_p: float32 `[S]`.
        min_p: float32 `[S]`.
        seed: int64 `[S]`.
        index: int32 `[S]`.
        position: int32 `[S]`.
        rows: int32, as all that follows from `_core.SampleLists`: `[S, 16]`.
        entries: int32 `[E, 2]`.
        saved: float32 `[E]`, overwritten.
        masks: int32 `[., ceil(vocab_size / 32)]`.
    """
    num_samples, vocab_size = logits.shape
    launcher_of(logits).launch(
        kernel_name("sample_options"),
        (num_samples, 1, 1),
        *_BLOCK_OF_A_ROW,
        logits,
        tokens,
        logprobs,
        ranks,
        candidate_ids,
        candidate_logprobs,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        index,
        position,
        rows,
        entries,
        saved,
        masks,
        c_int(candidate_ids.shape[1]),
        c_int(vocab_size),
        c_longlong(logits.stride(0)),
    )


@operation("gather_tokens", "input_ids")
def gather_tokens(
    input_ids: Tensor, last_token: Tensor, rows: Tensor, query_start_loc: Tensor
) -> None:
    """Replace each input id of -1 by the row's last sampled token.

    Args:
        input_ids: int32 `[T]`.
        last_token: int32 `[max_num_seqs]`.
        rows: int32 `[R]`.
        query_start_loc: int32 `[R + 1]`.
    """
    num_rows = rows.shape[0]
    launcher_of(input_ids).launch(
        kernel_name("gather_tokens"),
        (-(-num_rows // 4), 1, 1),
        128,
        0,
        input_ids,
        last_token,
        rows,
        query_start_loc,
        c_int(num_rows),
    )


@operation("scatter_tokens", "last_token")
def scatter_tokens(last_token: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Store the drawn tokens `[S]` as the last of their rows; row and token -1 are skipped."""
    num_samples = tokens.shape[0]
    launcher_of(tokens).launch(
        kernel_name("scatter_tokens"),
        (-(-num_samples // 128), 1, 1),
        128,
        0,
        last_token,
        tokens,
        rows,
        c_int(num_samples),
    )
