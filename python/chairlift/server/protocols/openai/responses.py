"""`POST /v1/responses`. Nothing is stored: each request contains the whole conversation."""

from collections.abc import Sequence
from typing import Any, Final

from chairlift.api import types
from chairlift.api.checks import bad
from chairlift.api.errors import Reason, RequestError
from chairlift.server.protocols.names import Names
from chairlift.server.protocols.openai import parts, rules, tools
from chairlift.server.protocols.openai.fields import Fields, unsupported
from chairlift.server.protocols.openai.formats import response_format
from chairlift.server.protocols.openai.input_items import Input, input_messages
from chairlift.server.protocols.openai.job import Job
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.response_echo import Repeated
from chairlift.server.protocols.openai.response_events import ResponseAnswer, ResponseStream

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
    repeated = Repeated(body)
    # Where nothing has to be left out both are the same; an input that is too long is refused.
    body.one_of("truncation", "disabled", "auto")
    logprobs, num_top = _include(body)
    constraint, constraint_names = _formats(body, repeated)
    effort = _effort(body, repeated)
    instructions = _instructions(body, repeated)
    given = _input(body)
    taken = tools.response_tools(body, given.tools)
    if tools.is_forced(taken.arguments["tool_choice"]):
        # A call has no other form than its own.
        constraint = None
    body.refuse_unless_neutral(rules.NEUTRAL)
    body.drop(*rules.IGNORED_OF_RESPONSES)
    first = [types.ChatMessage("system", instructions)] if instructions else []
    request = types.Request(
        prompt=types.Chat(
            [*first, *given.messages],
            template_arguments=parts.template_arguments(body, effort),
            **taken.arguments,
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
    stops = parts.stop_ids(request)
    shown, members = texts if logprobs else None, repeated.json()
    paths = ["instructions" for _ in first] + given.paths
    return Job(
        requests=[request],
        output=parts.output(stream=stream, logprobs=logprobs, num_candidates=num_top),
        num_answers=1,
        model=model,
        is_stream=stream,
        answer=lambda origin: ResponseAnswer(origin, members, shown, stops),
        stream=lambda origin: ResponseStream(origin, members, shown, stops),
        names=Names(_NAMES | constraint_names, tools.renaming(taken.paths, paths)),
        num_kept_bytes=len(members),
    )


def _refuse_memory(body: Fields) -> None:
    """Refuse what needs responses of the past, or another server."""
    for name in ("previous_response_id", "conversation"):
        if name in body:
            why = "this server keeps no responses: send the whole conversation as input"
            raise unsupported(name, why)
    body.refuse_unless("background", False)
    body.refuse(*rules.REFUSED_OF_RESPONSES)


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


def _formats(body: Fields, repeated: Repeated) -> tuple[types.Constraint | None, dict[str, str]]:
    """Take what the answer must be, and how it is worded."""
    text = body.part("text")
    shown = {"type": "text"} if text is None else text.peek("format", {"type": "text"})
    found = response_format(body, None if text is None else text.part("format"))
    verbosity = "medium"
    if text is not None:
        verbosity = parts.verbosity_of(text)
        text.end()
    repeated.set("text", {"format": shown, "verbosity": verbosity})
    return found


def _effort(body: Fields, repeated: Repeated) -> str | None:
    """Take the effort of reasoning; its text is the answer's, and no summary is made of it."""
    reasoning = body.part("reasoning")
    effort = summary = None
    if reasoning is not None:
        effort = parts.effort_of(reasoning, "effort")
        for name in ("generate_summary", "summary"):
            if name in reasoning:
                summary = reasoning.one_of(name, "auto", "concise", "detailed")
        reasoning.refuse_unless("context", "auto")
        reasoning.refuse_unless("mode", "standard")
        reasoning.end()
    repeated.set("reasoning", {"effort": effort, "summary": summary})
    return effort


def _instructions(body: Fields, repeated: Repeated) -> str:
    instructions = body.take("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise bad("instructions", "text", instructions)
    repeated.set("instructions", instructions)
    return instructions or ""


def _input(body: Fields) -> Input:
    """Take the input.

    Raises:
        RequestError: It has no message.
    """
    given = body.take("input", "")
    if isinstance(given, str):
        message = types.ChatMessage("user", given)
        found = Input([message] if given else [], ["input"], [])
    elif isinstance(given, list):
        found = input_messages(given)
    else:
        raise bad("input", "text or a list of items", given)
    if not found.messages:
        message_text = "input: expected text or at least one message, got none"
        raise RequestError(Reason.BAD_PARAMETER, message_text, field="input")
    return found
