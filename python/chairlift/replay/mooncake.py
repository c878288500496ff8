"""Mooncake's traces: when requests came, how long they were, and which beginnings they share.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}

A timestamp is in milliseconds. An id names 512 tokens, the last one of a prompt what is left, and
all tokens before them: equal ids mean equal beginnings. With blocks of 16 tokens it is 32 blocks.
"""

import gzip
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chairlift.api.errors import ConfigError
from chairlift.replay.recipes import header_of
from chairlift.replay.trace import Request, Trace

TOKENS_PER_ID: Final = 512

_GZIP: Final = b"\x1f\x8b"

_MAX_BYTES: Final = 4 * 2**30
"""Most that is read of a file, unpacked."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    timestamp: Annotated[float, Field(ge=0, le=1e12)]
    input_length: Annotated[int, Field(ge=1, le=2**24)]
    output_length: Annotated[int, Field(ge=1, le=2**24)]
    hash_ids: list[Annotated[int, Field(ge=0, lt=2**63)]]


def is_mooncake(path: Path) -> bool:
    """Return whether the first line of a file is one of Mooncake's; False if it cannot be read."""
    try:
        with _opened(path) as file:
            return b'"hash_ids"' in file.readline(2**20)
    except (OSError, EOFError):
        return False


def read_mooncake(path: Path) -> Trace:
    """Read a trace in Mooncake's format, as lines or compressed by gzip.

    Raises:
        ConfigError: It cannot be read or is malformed; the message names the line.
    """
    try:
        with _opened(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        message = f"cannot read trace {path}: {str(error).lower()}"
        raise ConfigError(message) from None
    if len(content) > _MAX_BYTES:
        message = f"cannot read trace {path}: expected at most {_MAX_BYTES} bytes"
        raise ConfigError(message)
    requests = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            requests.append(_request(_Line.model_validate_json(line)))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            message = f"{path}:{number}: {f'{field}: ' if field else ''}{first['msg'].lower()}"
            raise ConfigError(message) from None
    requests.sort(key=lambda request: request.arrival)
    longest = max(request.num_prompt + request.max_tokens for request in requests) + 1
    header = header_of("mooncake", len(requests), max_model_len=1 << longest.bit_length())
    flushes = [requests[-1].arrival]
    return Trace(header, requests, flushes=flushes, tokens_per_name=TOKENS_PER_ID)


def _request(line: _Line) -> Request:
    count = -(-line.input_length // TOKENS_PER_ID)
    return Request(
        arrival=round(line.timestamp * 1e6),
        num_prompt=line.input_length,
        max_tokens=line.output_length,
        num_output=line.output_length,
        blocks=np.array(line.hash_ids[:count], dtype=np.uint64),
    )


def _opened(path: Path) -> gzip.GzipFile:
    with path.open("rb") as file:
        is_packed = file.read(2) == _GZIP
    if is_packed:
        return gzip.open(path)
    return path.open("rb")  # type: ignore[return-value]  # read and readline are all it needs
