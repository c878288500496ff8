"""Names of the beginnings of prompts: what the router sees of a request.

A prompt is cut into pieces of 256 bytes, which are 64 token ids, or some 64 tokens of a text. The
name of a piece is a keyed hash of it and of all pieces before it, so that equal names mean equal
beginnings. Tenants, adapters and salts share no name, as they share no block of a prefix cache.
"""

import re
import secrets
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chairlift.v1 import generation_pb2 as pb

TOKENS_PER_NAME: Final = 64
_PIECE_BYTES: Final = 256
_MAX_PIECES: Final = 512
"""A longer prompt is named by its beginning alone, so that naming takes less than a millisecond."""
_MAX_BYTES: Final = _PIECE_BYTES * _MAX_PIECES
_BYTES_PER_TOKEN: Final = 4
_NAME_BYTES: Final = 8
_FIELDS: Final = (b'"messages"', b'"prompt"', b'"input"')
"""Fields of bodies of the OpenAI API that hold the prompt."""
_MODEL: Final = re.compile(rb'"model"\s*:\s*"([A-Za-z0-9][A-Za-z0-9._-]{0,63})"')
"""The field that names the model or an adapter. Such words in a text mislead a choice at most."""


@dataclass(frozen=True, slots=True)
class PromptNames:
    """What the router sees of a request."""

    names: NDArray[np.int64]
    """The names of the first pieces of the prompt, `[num_pieces]`."""
    num_tokens: int
    """Tokens of the whole prompt, estimated for a text."""
    adapter: str = ""
    """The adapter that the request names; over HTTP it may be the name of the model."""


NO_PROMPT: Final = PromptNames(np.zeros(0, np.int64), 1)
"""What a call that computes nothing has."""


class Naming:
    """Names prompts under a random key: no client can compute a name, nor compare two ingresses."""

    def __init__(self) -> None:
        """Draw the key."""
        self._key = secrets.token_bytes(32)

    def of_start(self, start: pb.Start, tenant: str) -> PromptNames:
        """Return the names of the prompt of a request.

        Args:
            start: The request.
            tenant: Owner of the request.
        """
        return replace(self._of_prompt(start, tenant), adapter=start.adapter)

    def _of_prompt(self, start: pb.Start, tenant: str) -> PromptNames:
        root = (tenant, start.adapter, start.prefix_cache.salt)
        kind = start.WhichOneof("prompt")
        if kind == "token_ids":
            ids = start.token_ids.ids
            content = np.asarray(ids[: TOKENS_PER_NAME * _MAX_PIECES], np.uint32).tobytes()
            return self._names(root, content, len(ids))
        if kind == "chat":
            tools = b"".join(tool.SerializeToString() for tool in start.chat.tools)
            num_tokens = start.chat.ByteSize() // _BYTES_PER_TOKEN
            return self._names(root, _chat_content(start.chat), num_tokens, tools)
        content = start.text[:_MAX_BYTES].encode(errors="replace")
        return self._names(root, content, len(start.text) // _BYTES_PER_TOKEN)

    def of_body(self, body: bytes, tenant: str) -> PromptNames:
        """Return the names of the prompt in a body of the OpenAI API, which is not parsed.

        What stands before the prompt does not count: parameters differ where prompts do not.
        """
        starts = [start for start in map(body.find, _FIELDS) if start >= 0]
        content = body[min(starts, default=0) :][:_MAX_BYTES]
        found = _MODEL.search(body)
        model = "" if found is None else found[1].decode()
        names = self._names((tenant, model), content, len(body) // _BYTES_PER_TOKEN)
        return replace(names, adapter=model)

    def _names(
        self, root: tuple[str, ...], content: bytes, num_tokens: int, head: bytes = b""
    ) -> PromptNames:
        name = blake2b(repr(root).encode(errors="replace") + head, key=self._key).digest()
        names = bytearray()
        num_pieces = min(len(content) // _PIECE_BYTES, _MAX_PIECES)
        for place in range(0, num_pieces * _PIECE_BYTES, _PIECE_BYTES):
            piece = content[place : place + _PIECE_BYTES]
            name = blake2b(piece, digest_size=_NAME_BYTES, key=name).digest()
            names += name
        return PromptNames(np.frombuffer(names, np.int64), max(1, num_tokens))


def _chat_content(chat: pb.Chat) -> bytes:
    """Return the beginning of a conversation; the longest beginnings of two are equal, too."""
    content = bytearray()
    for message in chat.messages:
        texts = [message.text, *(part.text for part in message.parts.parts)]
        for text in (message.role, *texts):
            content += text[: _MAX_BYTES - len(content)].encode(errors="replace") + b"\0"
        if len(content) >= _MAX_BYTES:
            break
    return bytes(content)
