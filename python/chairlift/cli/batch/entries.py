"""What a line of the input asks for, and the line of the output that answers it.

Two formats, which one file may mix:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}    OpenAI's
    {"id": "a", "prompt": "..."}    or `messages`, or `input`, beside the other fields of that body

A body means what it means over HTTP: the same functions read it.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chairlift.api import types
from chairlift.api.errors import RequestError, echo
from chairlift.server.http.errors import HttpError
from chairlift.server.http.json_body import decode
from chairlift.server.http.json_pieces import to_json
from chairlift.server.protocols.openai.chat import chat_job
from chairlift.server.protocols.openai.completions import completions_job
from chairlift.server.protocols.openai.embeddings import EmbeddingsJob, embeddings_job
from chairlift.server.protocols.openai.job import Answer, Job, Origin
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.responses import responses_job

_EMBEDDINGS: Final = "/v1/embeddings"
_JOBS: Final = {
    "/v1/chat/completions": chat_job,
    "/v1/completions": completions_job,
    "/v1/responses": responses_job,
}
_URLS: Final = (*_JOBS, _EMBEDDINGS)
_PLAIN: Final = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": _EMBEDDINGS,
}
"""The endpoint of a plain line, by its field."""

Id = str | int

Result = dict[str, Any] | HttpError
"""The body of an answer, or why there is none."""

MAX_LIVE_BYTES: Final = 64 * 2**20
"""Bytes of the input's lines that have begun and are not answered; one may be longer."""


class LineError(Exception):
    """A line is no request of any endpoint."""

    def __init__(self, message: str, code: str = "invalid_line") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Head:
    """Which line of the input a line of the output belongs to."""

    number: int
    id: Id | None = None
    is_plain: bool | None = None
    """None where the format is not known."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that is refused before it runs."""

    head: Head
    error: LineError | HttpError


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A line whose requests can run."""

    head: Head
    job: Job | EmbeddingsJob
    size: int
    """Bytes of the line."""

    @property
    def requests(self) -> Sequence[types.Request]:
        """Return the requests, in order."""
        return self.job.requests

    @property
    def origin(self) -> Origin:
        """Return what the body of the answer repeats."""
        return Origin(f"batch-{self.head.number}", int(time.time()), self.job.model)

    def translate(self, error: RequestError) -> HttpError:
        """Return an error of a request with the field as the line has it."""
        names = getattr(self.job, "names", None)
        return HttpError.of(error if names is None else names.translate(error))


def id_of(value: object) -> Id:
    """Return the id of a line.

    Raises:
        LineError: It has none.
    """
    if not isinstance(value, dict):
        message = f"expected an object, got {_kind(value)}"
        raise LineError(message)
    name = "id" if _is_plain(value) else "custom_id"
    found = value.get(name)
    if isinstance(found, str) and found:
        return found
    if isinstance(found, int) and not isinstance(found, bool) and name == "id":
        return found
    expected = "text or a whole number" if name == "id" else "text"
    message = f"{name}: expected {expected}, got {_kind(found)}"
    raise LineError(message, "missing_id")


def task_of(number: int, data: bytes, served: Sequence[str], texts: TokenTexts) -> Task | Bad:
    """Convert a line.

    Args:
        number: Number of the line.
        data: The line.
        served: Names of the model.
        texts: Texts of single tokens, for log probabilities.
    """
    head = Head(number)
    try:
        value = decode(data)
        if isinstance(value, dict):
            head = Head(number, None, _is_plain(value))
        head = Head(number, id_of(value), head.is_plain)
        url, body = _plain_body(value) if head.is_plain else _openai_body(value)
        job = _job_of(url, body, served, texts)
    except RequestError as error:
        return Bad(head, HttpError.of(error))
    except (LineError, HttpError) as error:
        return Bad(head, error)
    return Task(head, job, len(data))


def _job_of(
    url: str, body: object, served: Sequence[str], texts: TokenTexts
) -> Job | EmbeddingsJob:
    if url == _EMBEDDINGS:
        return embeddings_job(body, served)
    job = _JOBS[url](body, served, texts, "")
    if job.is_stream:
        message = "stream: expected false: the answers of a batch are whole"
        raise LineError(message, "unsupported")
    return job


def _is_plain(value: Mapping[str, Any]) -> bool:
    return not {"custom_id", "method", "url", "body"} & value.keys()


def _plain_body(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the endpoint of a plain line and its body."""
    names = [name for name in _PLAIN if name in value]
    if len(names) != 1:
        got = " and ".join(names) or "none of them"
        message = f"expected one of {', '.join(_PLAIN)}, got {got}"
        raise LineError(message)
    body = {name: field for name, field in value.items() if name != "id"}
    return _PLAIN[names[0]], body


def _openai_body(value: dict[str, Any]) -> tuple[str, Any]:
    """Return the endpoint of a line in OpenAI's format and its body."""
    for name in value:
        if name not in ("custom_id", "method", "url", "body"):
            message = f"{echo(name)}: unknown field"
            raise LineError(message)
    if value.get("method") != "POST":
        message = f"method: expected 'POST', got {_kind(value.get('method'))}"
        raise LineError(message, "invalid_method")
    url = value.get("url")
    if url not in _URLS:
        message = f"url: expected one of {', '.join(_URLS)}, got {_kind(url)}"
        raise LineError(message, "invalid_url")
    if "body" not in value:
        message = "body: expected an object, got none"
        raise LineError(message)
    return url, value["body"]


def _kind(value: object) -> str:
    """Return what an error says that it got."""
    if value is None:
        return "none"
    return repr(echo(value)) if isinstance(value, str) else f"a {type(value).__name__}"


# --- lines of the output ------------------------------------------------------------------------


def body_of(answer: Answer) -> dict[str, Any]:
    """Return the body of an answer that is complete."""
    body: dict[str, Any] = json.loads(b"".join(answer.body()))
    return body


def answer_line(head: Head, body: Mapping[str, Any]) -> bytes:
    """Return the line for the answer of an endpoint, without its end."""
    if head.is_plain:
        return to_json({"id": head.id, **_plain_answer(body)})
    response = {"status_code": 200, "request_id": _request_id(head), "body": body}
    return to_json(
        {"id": _request_id(head), "custom_id": head.id, "response": response, "error": None}
    )


def error_line(head: Head, error: LineError | HttpError) -> bytes:
    """Return the line for a line that was refused or failed, without its end."""
    found: dict[str, Any] = {
        "code": error.code,
        "message": f"line {head.number}: {error.message}",
        "line": head.number,
    }
    if head.is_plain:
        return to_json({"id": head.id, "error": found})
    response = None
    if isinstance(error, HttpError) and head.id is not None:
        response = {
            "status_code": int(error.status),
            "request_id": _request_id(head),
            "body": {"error": error.object()},
        }
    named = None if head.id is None else _request_id(head)
    return to_json({"id": named, "custom_id": head.id, "response": response, "error": found})


def _request_id(head: Head) -> str:
    return f"batch_req_{head.number}"


def _plain_answer(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an answer that a plain line has."""
    if body["object"] == "list":
        vectors = [entry["embedding"] for entry in body["data"]]
        found: dict[str, Any] = (
            {"embedding": vectors[0]} if len(vectors) == 1 else {"embeddings": vectors}
        )
        return {**found, "usage": body["usage"]}
    answers = [_plain_choice(choice) for choice in body["choices"]]
    found = answers[0] if len(answers) == 1 else {"answers": answers}
    return {**found, "usage": body["usage"]}


def _plain_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice.get("message", {})
    found = {"text": choice.get("text") or message.get("content") or ""}
    for name in ("reasoning_content", "tool_calls"):
        if name in message:
            found[name] = message[name]
    found["finish_reason"] = choice["finish_reason"]
    return found if choice["logprobs"] is None else {**found, "logprobs": choice["logprobs"]}
