"""`POST /v1/completions`: one prompt or several, as text or token ids."""

import functools
from collections.abc import Sequence
from typing import Any, Final

from chairlift.api import types
from chairlift.api.checks import bad, check_count, is_list
from chairlift.server.protocols.names import Names
from chairlift.server.protocols.openai import parts, rules
from chairlift.server.protocols.openai.choices import ChoicesAnswer, ChoicesStream, Form
from chairlift.server.protocols.openai.fields import Fields
from chairlift.server.protocols.openai.formats import chat_format
from chairlift.server.protocols.openai.job import Job
from chairlift.server.protocols.openai.logprobs import TokenTexts

MAX_PROMPTS: Final = 1024
MAX_REPEATED_IDS: Final = 2**20
"""Ids of `allowed_token_ids`, which each prompt of a body takes along."""

_NAMES: Final = parts.NAMES | {"token_ids": "prompt"}


def completions_job(value: Any, served: Sequence[str], texts: TokenTexts, tenant: str) -> Job:
    """Convert a body; `served` are the names of the model.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    body = Fields(value)
    model = parts.model_of(body, served)
    stream = body.flag("stream")
    usage = parts.stream_options(body, stream=stream)
    num_top = _logprobs(body)
    logprobs, echo = num_top is not None, body.flag("echo")
    body.refuse_unless("suffix", "")
    body.refuse_unless_neutral(rules.NEUTRAL)
    body.drop(*rules.IGNORED_OF_COMPLETIONS)
    constraint, constraint_names = chat_format(body)
    sampling = parts.sampling(body)
    num = parts.num_answers(sampling)
    body.refuse_unless("best_of", num)
    max_tokens = body.take("max_tokens")
    # The engine has no request without output: one token is drawn, and not shown.
    is_prompt_alone = echo and max_tokens == 0 and not isinstance(max_tokens, bool)
    common: dict[str, Any] = {
        "sampling": sampling,
        "stopping": parts.stopping(body, 1 if is_prompt_alone else max_tokens),
        "output": _output(body, num_top, echo=echo),
        "prefix_cache": types.PrefixCache(salt=body.text("cache_salt")),
        "add_special_tokens": body.flag("add_special_tokens", default=True),
        "constraint": constraint,
        "truncate_prompt": body.take("truncate_prompt_tokens"),
        "tenant": tenant,
    }
    prompts = _prompts(body.take("prompt"))
    if is_list(sampling.allowed_token_ids):
        limit = MAX_REPEATED_IDS // len(prompts)
        check_count(sampling.allowed_token_ids, "allowed_token_ids", limit)
    requests = [types.Request(prompt=prompt, **common) for prompt in prompts]
    body.end()
    form = functools.partial(
        Form,
        is_chat=False,
        texts=texts if logprobs else None,
        has_output=not is_prompt_alone,
        skip_special=common["output"].skip_special_tokens,
    )
    num_choices = num * len(requests)
    return Job(
        requests=requests,
        output=parts.output(
            stream=stream,
            logprobs=logprobs,
            num_candidates=num_top or 0,
            echo=echo,
            counts=usage.in_chunks,
        ),
        num_answers=num,
        model=model,
        is_stream=stream,
        answer=lambda origin: ChoicesAnswer(origin, form(), num_choices),
        stream=lambda origin: ChoicesStream(origin, form(), num_choices, usage=usage),
        names=Names(_NAMES | constraint_names),
    )


def _output(body: Fields, num_top: int | None, *, echo: bool) -> types.Output:
    """Return what comes beside the tokens; without `num_top` there are no log probabilities."""
    logprobs = num_top is not None
    return types.Output(
        logprobs=logprobs,
        candidates=num_top or 0,
        prompt_logprobs=echo and logprobs,
        prompt_candidates=num_top or 0 if echo else 0,
        echo=echo,
        skip_special_tokens=body.flag("skip_special_tokens", default=True),
    )


def _prompts(value: Any) -> list[Any]:
    """Return the prompts: a text, a list of token ids, or a list of either."""
    expected = "text, a list of token ids, or a list of either"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise bad("prompt", expected, value)
    if not isinstance(value[0], str | list):
        return [value]
    check_count(value, "prompt", MAX_PROMPTS)
    for prompt in value:
        if not isinstance(prompt, str | list):
            raise bad("prompt", expected, prompt)
    return value


def _logprobs(body: Fields) -> int | None:
    """Return the number of candidates of each log probability; None without them."""
    wanted = body.take("logprobs")
    if wanted is None or wanted is False:
        return None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= 5:
        raise bad("logprobs", "a whole number from 0 to 5", wanted)
    return wanted
