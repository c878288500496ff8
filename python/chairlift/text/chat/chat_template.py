"""Chat templates: conversations to the text that a model was trained on.

A template is Jinja code that comes with the model. It has the variables that `transformers` passes
(`apply_chat_template`), and runs in Jinja's sandbox, since a model is not trusted. The sandbox
limits neither time nor memory: `template_process.py` runs this module in a process that does.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chairlift.api.errors import Reason, RequestError, echo


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any],
    max_bytes: int | None = None,
) -> str:
    """Render a conversation.

    Args:
        template: Jinja source.
        messages: Mappings with `role`, `content` and perhaps `name`.
        add_generation_prompt: End with the text that begins the model's answer.
        variables: Further variables: special tokens, arguments of the request.
        max_bytes: The most that the text may have in UTF-8; None is no limit.

    Raises:
        RequestError: `BAD_PARAMETER` in `chat`: the template refuses the conversation, or fails;
            `PROMPT_TOO_LONG`: the text has more than `max_bytes`.
    """
    if not messages:
        _refuse("expected at least one message")
    # Templates ask `tools is none`, which an absent name is not.
    names = {"tools": None, "documents": None, **variables}
    try:
        pieces = _compile(template).generate(
            **names, messages=list(messages), add_generation_prompt=add_generation_prompt
        )
        return _joined(pieces, max_bytes)
    except RequestError:
        raise
    except TemplateError as error:
        _refuse(f"chat template: {echo(str(error))}")
    except Exception as error:
        # The message of any other error may quote the conversation.
        _refuse(f"chat template: {type(error).__name__}")


def _joined(pieces: Iterable[str], max_bytes: int | None) -> str:
    """Join the pieces of a text, and end with the first that is one too many."""
    taken, num_bytes = [], 0
    for piece in pieces:
        taken.append(piece)
        # A lone surrogate is refused later, as in any other text.
        num_bytes += len(piece.encode(errors="surrogatepass"))
        if max_bytes is not None and num_bytes > max_bytes:
            message = f"chat: expected at most {max_bytes} bytes of rendered text, got more"
            raise RequestError(Reason.PROMPT_TOO_LONG, message, field="chat")
    return "".join(taken)


def _refuse(message: str) -> NoReturn:
    raise RequestError(Reason.BAD_PARAMETER, message, field="chat") from None


class _Generation(Extension):
    """`{% generation %}` marks the model's own words for training; here its body is all it is."""

    tags = {"generation"}  # noqa: RUF012  - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON; Jinja's own filter escapes HTML, which models are not trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
