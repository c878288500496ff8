"""JSON that is encoded as it comes, and joined as it is sent.

The pieces of a body are a list of bytes: an answer of thousands of tokens is neither encoded nor
copied at once.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring


def to_json(value: object) -> bytes:
    """Encode a body; text stays as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def quoted(text: str) -> bytes:
    """Return a text as JSON."""
    return encode_basestring(text).encode()


def array(values: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of a list of values that are encoded."""
    if not values:
        return [b"[]"]
    pieces = [b","] * (2 * len(values) - 1)
    pieces[::2] = values
    return [b"[", *pieces, b"]"]


def arrays(lists: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the pieces of a list of values that consist of pieces."""
    pieces = [b"["]
    for number, value in enumerate(lists):
        if number:
            pieces.append(b",")
        pieces += value
    return [*pieces, b"]"]
