"""Builds `EmbedRequest` messages from plain Python values; see `start.py`."""

from collections.abc import Sequence
from typing import Final

from chairlift.api import checks
from chairlift.v1 import embedding_pb2 as pb
from chairlift.v1 import generation_pb2

_MAX_UINT32: Final = 2**32 - 1


def embed_request(
    inputs: Sequence[str | Sequence[int]],
    dimensions: int | None,
    prompt_name: str | None,
    *,
    truncate_end: bool,
) -> pb.EmbedRequest:
    """Build the message of one call.

    Raises:
        RequestError: `BAD_PARAMETER`: a value has the wrong type; `field` is its path.
    """
    if isinstance(inputs, str) or not checks.is_list(inputs):
        field, expected = "inputs", "a list of texts or lists of token ids"
        raise checks.bad(field, expected, inputs)
    options = pb.EmbedOptions(truncate_end=checks.flag(truncate_end, "truncate_end"))
    if dimensions is not None:
        options.dimensions = checks.integer(dimensions, "dimensions", 0, _MAX_UINT32)
    if prompt_name is not None:
        checks.utf8_len(prompt_name, "prompt_name")
        options.prompt_name = prompt_name
    messages = [_input(value, f"inputs[{number}]") for number, value in enumerate(inputs)]
    return pb.EmbedRequest(inputs=messages, options=options)


def _input(value: object, path: str) -> pb.EmbedInput:
    if isinstance(value, str):
        checks.utf8_len(value, path)
        return pb.EmbedInput(text=value)
    ids = checks.token_ids(value, path, _MAX_UINT32 + 1)
    return pb.EmbedInput(token_ids=generation_pb2.TokenIds(ids=ids))
