"""The parts of a request that endpoints have in common."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from chairlift.api import types
from chairlift.api.checks import check_count
from chairlift.engine.prepare.sampling import MAX_LOGIT_BIASES
from chairlift.server.convert.messages import LOGPROBS_INTERVAL, DeliveryOptions, check_model
from chairlift.server.protocols.openai.fields import Fields, unsupported

NAMES: Final = {
    "adapter": "model",
    "sampling.": "",
    "stopping.include_stop": "include_stop_str_in_output",
    "stopping.": "",
    "output.": "",
    "schedule.time_to_first_token": "x-request-timeout",
    "prefix_cache.salt": "cache_salt",
    "truncate_prompt": "truncate_prompt_tokens",
}
"""Names of the API for paths of the engine; an endpoint adds its own."""

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of reasoning."""

_INT64: Final = 2**63
_ID: Final = re.compile(r"[0-9]{1,10}")


def model_of(body: Fields, served: Sequence[str]) -> str:
    """Return the name by which the body calls the model.

    Raises:
        RequestError: It names another model.
    """
    model = body.text("model", served[0])
    check_model(model, served)
    return model or served[0]


def sampling(body: Fields) -> types.Sampling:
    """Take how tokens are drawn."""
    return types.Sampling(
        temperature=body.take("temperature"),
        top_k=body.take("top_k"),
        top_p=body.take("top_p"),
        min_p=body.take("min_p"),
        seed=_seed(body.take("seed")),
        n=body.take("n", 1),
        repetition_penalty=body.take("repetition_penalty"),
        presence_penalty=body.take("presence_penalty"),
        frequency_penalty=body.take("frequency_penalty"),
        logit_bias=_biases(body.take("logit_bias", {})),
        allowed_token_ids=body.take("allowed_token_ids", ()),
        bad_words=body.take("bad_words", ()),
    )


def _biases(biases: Any) -> Any:
    """Return biases by token id: JSON has texts as names; the engine refuses what is no number."""
    if not isinstance(biases, dict):
        return biases
    check_count(biases, "logit_bias", MAX_LOGIT_BIASES)
    return {int(name) if _ID.fullmatch(name) else name: bias for name, bias in biases.items()}


def num_answers(given: types.Sampling) -> int:
    """Return `n`, which the engine checks only with the rest of a request."""
    num: object = given.n
    return num if isinstance(num, int) else 1


def _seed(seed: Any) -> Any:
    """Return a seed of the engine, which has no sign, for one of 64 bits with a sign."""
    is_negative = isinstance(seed, int) and -_INT64 <= seed < 0
    return seed + 2 * _INT64 if is_negative else seed


def stopping(body: Fields, max_tokens: Any) -> types.Stopping:
    """Take when an answer ends."""
    return types.Stopping(
        max_tokens=max_tokens,
        min_tokens=body.take("min_tokens", 0),
        stop=body.take("stop", ()),
        stop_token_ids=body.take("stop_token_ids", ()),
        ignore_eos=body.take("ignore_eos", False),
        include_stop=body.take("include_stop_str_in_output", False),
        stop_regex=body.take("stop_regex", ()),
    )


def template_arguments(body: Fields, effort: str | None) -> Any:
    """Take the arguments of the chat template.

    Args:
        body: The request's body.
        effort: Effort of reasoning. Templates that know efforts read `reasoning_effort`; to those
            that have a switch for reasoning, `none` is off. The caller's own arguments go before.
    """
    given = body.take("chat_template_kwargs", {})
    if effort is None or not isinstance(given, dict):
        return given
    off = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **off, **given}


def effort_of(fields: Fields, name: str) -> str | None:
    """Take the effort of reasoning.

    Raises:
        RequestError: It is none of the API's.
    """
    return fields.one_of(name, *EFFORTS) if name in fields else None


def verbosity_of(fields: Fields) -> str:
    """Take the verbosity: no model that this server runs has such a setting.

    Raises:
        RequestError: It is none of the API's.
    """
    return fields.one_of("verbosity", "medium", "low", "high")


def stop_ids(request: types.Request) -> frozenset[int]:
    """Return the stop tokens of a request; the engine refuses what is no list of ids."""
    ids: object = request.stopping.stop_token_ids
    return frozenset(i for i in ids if isinstance(i, int)) if isinstance(ids, list) else frozenset()


def output(
    *,
    stream: bool,
    logprobs: bool,
    num_candidates: int = 0,
    echo: bool = False,
    counts: bool = False,
) -> DeliveryOptions:
    """Return what the outbox delivers: each step of a stream, else all at the end.

    Log probabilities come as they are computed: those of a whole answer take long to encode.

    Args:
        stream: The answer is sent as events.
        logprobs: With the log probability of each token.
        num_candidates: The likeliest tokens that come with each.
        echo: With the prompt.
        counts: The tokens of each event are counted.
    """
    return DeliveryOptions(
        text=True,
        token_ids=logprobs or counts,
        logprobs=logprobs,
        timeline=False,
        interval=1 if stream else LOGPROBS_INTERVAL if logprobs else 0,
        num_candidates=num_candidates,
        echo=echo,
        prompt_logprobs=echo and logprobs,
        num_prompt_candidates=num_candidates if echo else 0,
    )


class StreamOptions(NamedTuple):
    """Which usage a stream has."""

    at_end: bool = False
    """In a chunk of its own."""
    in_chunks: bool = False
    """In each chunk, of its answer so far."""


def stream_options(body: Fields, *, stream: bool) -> StreamOptions:
    """Take the options of a stream.

    Raises:
        RequestError: The options are malformed, or nothing is streamed.
    """
    options = body.part("stream_options")
    if options is None:
        return StreamOptions()
    if not stream:
        raise unsupported("stream_options", "only with stream")
    found = StreamOptions(options.flag("include_usage"), options.flag("continuous_usage_stats"))
    # Padding against observers of the lengths of packets, which a stream need not have.
    options.flag("include_obfuscation")
    options.end()
    return found
