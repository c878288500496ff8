"""`POST /v1/chat/completions`: a conversation to requests."""

import functools
from collections.abc import Sequence
from typing import Any, Final

from chairlift.api import types
from chairlift.api.checks import bad
from chairlift.server.protocols.names import Names
from chairlift.server.protocols.openai import parts, rules, tools
from chairlift.server.protocols.openai.choices import ChoicesAnswer, ChoicesStream, Form
from chairlift.server.protocols.openai.fields import Fields, unsupported
from chairlift.server.protocols.openai.formats import chat_format
from chairlift.server.protocols.openai.job import Job
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.messages import chat_messages

_NAMES: Final = (
    parts.NAMES
    | tools.NAMES
    | {
        "chat.messages": "messages",
        "chat.tool_choice.name": "tool_choice.function.name",
        "chat.template_arguments": "chat_template_kwargs",
        "chat": "messages",
        "prompt": "messages",
    }
)


def chat_job(value: Any, served: Sequence[str], texts: TokenTexts, tenant: str) -> Job:
    """Convert a body; `served` are the names of the model.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    body = Fields(value)
    model = parts.model_of(body, served)
    stream = body.flag("stream")
    usage = parts.stream_options(body, stream=stream)
    logprobs, num_top = _logprobs(body)
    effort = _effort(body)
    _others(body)
    constraint, constraint_names = chat_format(body)
    names = _NAMES | constraint_names | {"stopping.max_tokens": _max_tokens_name(body)}
    limit = body.take("max_completion_tokens")
    older_limit = body.take("max_tokens")
    sampling = parts.sampling(body)
    taken = tools.chat_tools(body)
    chat = types.Chat(
        messages=chat_messages(body),
        add_generation_prompt=body.flag("add_generation_prompt", default=True),
        template_arguments=parts.template_arguments(body, effort),
        **taken.arguments,
    )
    if tools.is_forced(chat.tool_choice):
        # A call has no other form than its own.
        constraint = None
    request = types.Request(
        prompt=chat,
        sampling=sampling,
        stopping=parts.stopping(body, older_limit if limit is None else limit),
        output=types.Output(
            logprobs=logprobs,
            candidates=num_top,
            skip_special_tokens=body.flag("skip_special_tokens", default=True),
        ),
        prefix_cache=types.PrefixCache(salt=body.text("cache_salt")),
        truncate_prompt=body.take("truncate_prompt_tokens"),
        constraint=constraint,
        tenant=tenant,
    )
    body.end()
    num = parts.num_answers(sampling)
    form = functools.partial(
        Form,
        is_chat=True,
        texts=texts if logprobs else None,
        stop_token_ids=parts.stop_ids(request),
    )
    return Job(
        requests=[request],
        output=parts.output(
            stream=stream, logprobs=logprobs, num_candidates=num_top, counts=usage.in_chunks
        ),
        num_answers=num,
        model=model,
        is_stream=stream,
        answer=lambda origin: ChoicesAnswer(origin, form(), num),
        stream=lambda origin: ChoicesStream(origin, form(), num, usage=usage),
        names=Names(names, tools.renaming(taken.paths)),
    )


def _max_tokens_name(body: Fields) -> str:
    return "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"


def _logprobs(body: Fields) -> tuple[bool, int]:
    """Return whether log probabilities are wanted, and of how many candidates."""
    wanted = body.flag("logprobs")
    top = body.take("top_logprobs", 0)
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= 20:
        raise bad("top_logprobs", "a whole number from 0 to 20", top)
    if top and not wanted:
        raise bad("top_logprobs", "logprobs to be true", top)
    return wanted, top


def _effort(body: Fields) -> str | None:
    """Take the effort of reasoning, which some clients write as responses have it."""
    effort = parts.effort_of(body, "reasoning_effort")
    reasoning = body.part("reasoning")
    if reasoning is None:
        return effort
    nested = parts.effort_of(reasoning, "effort")
    if not reasoning.flag("enabled", default=True):
        nested = "none"
    reasoning.refuse_unless("exclude", False)
    reasoning.drop("summary", "generate_summary")
    reasoning.end()
    return nested if effort is None else effort


def _others(body: Fields) -> None:
    """Take the fields that are ignored, and those that are refused unless they are off."""
    if body.items("modalities") not in ([], ["text"]):
        raise unsupported("modalities", "only text is supported by this server")
    if body.peek("function_call", "none") in ("none", "auto"):
        # Without functions.
        body.drop("function_call")
    body.refuse("function_call", *rules.REFUSED_OF_CHAT)
    body.refuse_unless_neutral(rules.NEUTRAL_OF_CHAT)
    parts.verbosity_of(body)
    body.drop(*rules.IGNORED_OF_CHAT)
