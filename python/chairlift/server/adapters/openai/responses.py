"""`POST /v1/responses`: without a memory, so that a conversation is sent whole each time."""

from collections.abc import Sequence
from typing import Any, Final

from chairlift import types
from chairlift.checks import bad
from chairlift.errors import Reason, RequestError
from chairlift.server.adapters.names import Names
from chairlift.server.adapters.openai import parts, tools
from chairlift.server.adapters.openai.fields import Fields, unsupported
from chairlift.server.adapters.openai.formats import response_format
from chairlift.server.adapters.openai.input_items import input_messages
from chairlift.server.adapters.openai.job import Job, Repeated
from chairlift.server.adapters.openai.logprobs import TokenTexts
from chairlift.server.adapters.openai.response_events import ResponseAnswer, ResponseStream

_NAMES: Final = (
    parts.NAMES
    | tools.NAMES
    | {
        "stopping.max_tokens": "max_output_tokens",
        "chat.messages": "input",
        "chat.template_arguments": "chat_template_kwargs",
        "chat": "input",
        "prompt": "input",
    }
)
_LOGPROBS: Final = "message.output_text.logprobs"


def responses_job(value: Any, served: Sequence[str], texts: TokenTexts, tenant: str) -> Job:
    """Convert a body; `served` are the names of the model.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    body = Fields(value)
    model = parts.model_of(body, served)
    stream = body.flag("stream")
    parts.stream_options(body, stream=stream)
    _refuse_memory(body)
    logprobs, num_top = _include(body)
    constraint, constraint_names = _formats(body)
    shown_tools = tools.shown(body)
    taken = tools.response_tools(body)
    values = {**_repeated(body), **shown_tools}
    repeated = Repeated(values)
    parts.without_effect(body)
    messages = _messages(body, values["instructions"])
    request = types.Request(
        prompt=types.Chat(
            messages, template_arguments=body.take("chat_template_kwargs", {}), **taken
        ),
        sampling=parts.sampling(body),
        stopping=parts.stopping(body, body.take("max_output_tokens")),
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
    if request.sampling.n != 1:
        raise unsupported("n", "a response has one answer")
    shown = texts if logprobs else None
    return Job(
        requests=[request],
        output=parts.output(stream=stream, logprobs=logprobs, num_candidates=num_top),
        num_answers=1,
        model=model,
        is_stream=stream,
        answer=lambda origin: ResponseAnswer(origin, repeated.values(), shown),
        stream=lambda origin: ResponseStream(origin, repeated.values(), shown),
        names=Names(_NAMES | constraint_names),
        repeated=repeated,
    )


def _refuse_memory(body: Fields) -> None:
    """Refuse what needs responses of the past."""
    for name in ("previous_response_id", "conversation"):
        if name in body:
            why = "this server keeps no responses: send the whole conversation as input"
            raise unsupported(name, why)
    body.refuse_unless("background", False)
    body.refuse("background_options", "context_management", "prompt", "moderation")
    body.refuse("prompt_cache_options", "prompt_cache_retention", "access_programs", "image")
    if body.one_of("truncation", "disabled", "auto") == "auto":
        raise unsupported("truncation", "only 'disabled' is supported by this server")


def _include(body: Fields) -> tuple[bool, int]:
    """Take what is added to the output: log probabilities, and of how many candidates.

    The rest names parts of items that this server never makes.
    """
    included = body.items("include")
    for name in included:
        if not isinstance(name, str):
            raise bad("include", "a list of names", name)
    top = body.take("top_logprobs", 0)
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= 20:
        raise bad("top_logprobs", "a whole number from 0 to 20", top)
    if top and _LOGPROBS not in included:
        raise bad("top_logprobs", f"include to have {_LOGPROBS!r}", top)
    return _LOGPROBS in included, top


def _formats(body: Fields) -> tuple[types.Constraint | None, dict[str, str]]:
    text = body.part("text")
    found = response_format(body, None if text is None else text.part("format"))
    if text is not None:
        if text.one_of("verbosity", "medium", "low", "high") != "medium":
            raise unsupported("text.verbosity", "only 'medium' is supported by this server")
        text.end()
    reasoning = body.part("reasoning")
    if reasoning is not None:
        # Clients send an object of nulls.
        reasoning.end()
    return found


def _repeated(body: Fields) -> dict[str, Any]:
    """Return the fields of a response that repeat those of its request."""
    instructions = body.take("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise bad("instructions", "text", instructions)
    metadata = body.take("metadata", {})
    if not isinstance(metadata, dict):
        raise bad("metadata", "an object", metadata)
    return {
        "instructions": instructions,
        "metadata": metadata,
    }


def _messages(body: Fields, instructions: str | None) -> list[types.ChatMessage]:
    """Take the input; the instructions come first."""
    given = body.take("input", "")
    messages: list[types.ChatMessage] = []
    if isinstance(given, str):
        if given:
            messages.append(types.ChatMessage("user", given))
    elif isinstance(given, list):
        messages = input_messages(given)
    else:
        raise bad("input", "text or a list of items", given)
    if not messages:
        message_text = "input: expected text or at least one message, got none"
        raise RequestError(Reason.BAD_PARAMETER, message_text, field="input")
    if instructions:
        messages.insert(0, types.ChatMessage("system", instructions))
    return messages
