"""Workloads drawn from distributions of lengths and arrivals: traces without a recording.

`chat`, `code` and `long` follow the public traces of Azure (2023, conversation and code) and
Mooncake; `anyscale` and `nano` are the workloads of two well-known comparisons of engines. All
draws are PCG64's: a seed gives the same trace on every machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from chairlift.api.config import Batching
from chairlift.replay.format import Header
from chairlift.replay.step_time import DEFAULT
from chairlift.replay.trace import NO_BLOCKS, BlockNames, Request, Trace

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SCALED_PROMPT_CAP = 1024
"""Longest prompt of a trace that is scaled down."""

_BLOCK_SIZE = 16
_KV_BYTES_PER_TOKEN = 128 * 2**10
_KV_MEMORY = 50 * 2**30
"""Memory of one H100 beside the weights of a model of 8 billion parameters."""

_NAME_STEP = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Lengths of `n` requests, in order of arrival."""

    prompts: Floats
    answers: Floats
    beginning: Integers | None = None
    """Prompts with equal numbers share a beginning; None: no prompts do."""
    num_alike: Floats | None = None
    """Length of the shared beginning, in tokens."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The distributions of one workload."""

    about: str
    draw: Callable[[Generator, int], Drawn]
    num_requests: int = 1000
    rate_per_s: float | None = None
    """Arrivals per second; None: all at once."""
    gap_shape: float = 1.0
    """Shape of the gamma distribution of the gaps between arrivals; 1 is Poisson."""
    phases: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """(seconds, factor on the rate), repeated."""
    batch_size: int | None = None
    """Requests of a static or dynamic batch, where the comparison names them."""


def draw_trace(
    name: str,
    *,
    num_requests: int | None = None,
    rate_per_s: float | None = None,
    seed: int = 0,
    scale: float = 1.0,
) -> Trace:
    """Draw the trace of a recipe.

    Args:
        name: One of `RECIPES`.
        num_requests: How many; None is the recipe's own number.
        rate_per_s: Arrivals per second; None is the recipe's own.
        seed: Seed of all draws.
        scale: Divides all lengths, so that a CPU can follow; the shape of the laws stays.
    """
    recipe, random = RECIPES[name], np.random.Generator(np.random.PCG64(seed))
    count = num_requests or recipe.num_requests
    drawn = recipe.draw(random, count)
    times = _arrivals(random, count, recipe, rate_per_s or recipe.rate_per_s)
    prompts = _scaled(drawn.prompts, scale, SCALED_PROMPT_CAP if scale > 1 else None)
    answers = _scaled(drawn.answers, scale, None)
    names = _block_names(random, drawn, prompts, scale)
    requests = [
        Request(arrival=t, num_prompt=prompt, max_tokens=answer, num_output=answer, blocks=blocks)
        for t, prompt, answer, blocks in zip(
            times.tolist(), prompts.tolist(), answers.tolist(), names, strict=True
        )
    ]
    longest = int((prompts + answers).max()) + 1
    header = header_of(name, count, recipe.batch_size, max_model_len=1 << longest.bit_length())
    return Trace(header, requests, flushes=[requests[-1].arrival])


def header_of(
    name: str, num_requests: int, batch_size: int | None = None, *, max_model_len: int
) -> Header:
    """Return the settings of traces without a recording: a model of 8 billion parameters, H100."""
    block = _BLOCK_SIZE * _KV_BYTES_PER_TOKEN
    return Header(
        model=name,
        batching=Batching.CONTINUOUS,
        batch_size=batch_size,
        batch_window_s=0.05,
        batch_timeout_s=5.0,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=max_model_len,
        max_queued_requests=max(1024, num_requests),
        block_size=_BLOCK_SIZE,
        num_kv_blocks=_KV_MEMORY // block,
        kv_bytes_per_block=block,
        prefix_cache=True,
        step_time=DEFAULT,
    )


def _scaled(lengths: Floats, scale: float, limit: int | None) -> Integers:
    return np.clip(np.rint(lengths / scale), 1, limit).astype(np.int64)


def _arrivals(random: Generator, n: int, recipe: Recipe, rate_per_s: float | None) -> Integers:
    """Return the times of arrival, in nanoseconds."""
    if rate_per_s is None:
        return np.zeros(n, dtype=np.int64)
    gaps = random.gamma(recipe.gap_shape, 1 / recipe.gap_shape, n)
    # Times at a constant rate, stretched where the rate has a factor.
    even = np.cumsum(gaps) / rate_per_s
    seconds, factors = np.array(recipe.phases).T
    ends, weights = np.cumsum(seconds), np.cumsum(seconds * factors)
    rounds, rest = np.divmod(even, weights[-1])
    inside = np.interp(rest, np.concatenate([[0], weights]), np.concatenate([[0], ends]))
    times: Integers = np.rint((rounds * ends[-1] + inside) * 1e9).astype(np.int64)
    return times


def _block_names(
    random: Generator, drawn: Drawn, prompts: Integers, scale: float
) -> list[BlockNames]:
    if drawn.beginning is None or drawn.num_alike is None:
        return [NO_BLOCKS] * len(prompts)
    first = random.integers(0, 2**64, int(drawn.beginning.max()) + 1, dtype=np.uint64)
    counts = np.minimum(_scaled(drawn.num_alike, scale, None), prompts) // _BLOCK_SIZE
    steps = np.arange(counts.max(), dtype=np.uint64) * _NAME_STEP
    return [
        first[beginning] + steps[:count]
        for beginning, count in zip(drawn.beginning.tolist(), counts.tolist(), strict=True)
    ]


def _log_normal(
    random: Generator, n: int, mu: float, sigma: float, low: float, high: float
) -> Floats:
    return np.clip(random.lognormal(mu, sigma, n), low, high)


def _of_mean(mean: float, sigma: float) -> float:
    """Return the mu of a log-normal distribution with this mean."""
    return float(np.log(mean) - sigma**2 / 2)


def _chat(random: Generator, n: int) -> Drawn:
    prompts = _log_normal(random, n, 6.63, 0.985, 4, 16_000)
    # The answers of the trace have two modes: short ones, and those that run into a limit.
    short, long = random.lognormal(np.log(100), 0.45, n), random.normal(410, 40, n)
    return Drawn(prompts, np.clip(np.where(random.random(n) < 0.62, short, long), 1, 1000))


def _code(random: Generator, n: int) -> Drawn:
    prompts = _log_normal(random, n, 7.0, 1.36, 3, 7400)
    return Drawn(prompts, _log_normal(random, n, 2.79, 0.85, 1, 1900))


def _long(random: Generator, n: int) -> Drawn:
    """Draw conversations of four turns, 16 at a time; each turn sends the one before again.

    Four turns are closest to the trace, where 37 % of the pages of 512 tokens have been sent
    before; here it is 40 %.
    """
    turns, at_a_time = 4, 16
    lengths = _log_normal(random, n, 8.74, 1.2, 1, 126_000)
    numbers = np.arange(n)
    conversation = numbers // (turns * at_a_time) * at_a_time + numbers % at_a_time
    # The turns of a conversation grow; the law of all lengths stays what it is.
    prompts = np.empty(n)
    prompts[np.lexsort((numbers, conversation))] = lengths[np.lexsort((lengths, conversation))]
    answers = _log_normal(random, n, 5.34, 1.36, 1, 2000)
    return Drawn(prompts, answers, beginning=conversation, num_alike=prompts)


def _sharegpt(random: Generator, n: int) -> Drawn:
    prompts = _log_normal(random, n, _of_mean(202, 1.2), 1.2, 4, 2048)
    return Drawn(prompts, _log_normal(random, n, _of_mean(180, 0.9), 0.9, 1, 2048))


def _sharegpt_opt(random: Generator, n: int) -> Drawn:
    """Draw lengths of the means in the paper on vLLM, within the 2,048 tokens of OPT."""
    prompts = _log_normal(random, n, _of_mean(161, 1.2), 1.2, 4, 1024)
    return Drawn(prompts, _log_normal(random, n, _of_mean(338, 0.9), 0.9, 1, 1024))


def _anyscale(random: Generator, n: int, *, cap: int) -> Drawn:
    """Draw prompts of 512 tokens; an answer above the cap is drawn again, not cut."""
    answers = np.full(n, np.inf)
    while len(above := np.flatnonzero(answers > cap)):
        answers[above] = np.maximum(np.rint(random.exponential(128, len(above))), 1)
    return Drawn(np.full(n, 512.0), answers)


def _nano(random: Generator, n: int) -> Drawn:
    prompts, answers = random.integers(100, 1024, (2, n), endpoint=True).astype(np.float64)
    return Drawn(prompts, answers)


def _prefix(random: Generator, n: int) -> Drawn:
    """Draw system prompts of unequal popularity, each followed by a question."""
    lengths = random.integers(512, 2048, 64, endpoint=True).astype(np.float64)
    popularity = np.arange(1, len(lengths) + 1) ** -1.1
    which = random.choice(len(lengths), n, p=popularity / popularity.sum())
    question = _log_normal(random, n, np.log(100), 0.8, 4, 1024)
    answers = _log_normal(random, n, _of_mean(180, 0.9), 0.9, 1, 2048)
    return Drawn(lengths[which] + question, answers, which, lengths[which])


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "chat": Recipe("conversations", _chat, rate_per_s=5.53, gap_shape=0.8),
        "code": Recipe(
            "code completion: long prompts, short answers, bursts",
            _code,
            rate_per_s=2.57,
            gap_shape=0.1,
            phases=((60, 1.9), (60, 0.1)),
        ),
        "long": Recipe("long conversations that send their history again", _long, rate_per_s=3.4),
        "sharegpt-like": Recipe("short prompts, longer answers", _sharegpt, rate_per_s=8.0),
        "sharegpt-opt": Recipe(
            "161 in, 338 out, at most 2,048 together", _sharegpt_opt, rate_per_s=2.0
        ),
        "anyscale": Recipe(
            "512 in, exponential out of mean 128 up to 1536",
            partial(_anyscale, cap=1536),
            batch_size=4,
        ),
        "anyscale-512": Recipe("the same up to 512", partial(_anyscale, cap=512), batch_size=8),
        "anyscale-128": Recipe("the same up to 128", partial(_anyscale, cap=128), batch_size=12),
        "anyscale-32": Recipe("the same up to 32", partial(_anyscale, cap=32), batch_size=16),
        "nano": Recipe("uniform 100..1024 in and out", _nano, num_requests=256),
        "prefix": Recipe("shared system prompts", _prefix, rate_per_s=8.0),
        "burst": Recipe(
            "chat, ten times as much for 5 s of every minute",
            _chat,
            rate_per_s=3.0,
            phases=((55, 1), (5, 10)),
        ),
    }
)
"""By the name that `chairlift replay` takes in place of a file."""
