"""JSON of clients: bounded in depth, without the values that JSON does not have."""

import json
import re
from http import HTTPStatus
from itertools import accumulate
from typing import Any, Final

from chairlift.server.http.errors import refused

MAX_DEPTH: Final = 64

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_OTHER: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def decode(body: bytes) -> Any:
    """Decode a body.

    Raises:
        HttpError: It is no JSON in UTF-8, is nested too deeply, or has a number of another format.
    """
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        message = f"expected JSON of at most {MAX_DEPTH} levels, got more"
        raise refused(HTTPStatus.BAD_REQUEST, message, "invalid_json")
    try:
        return json.loads(body.decode(), parse_constant=_refuse)
    except json.JSONDecodeError as error:
        message = f"the body is not valid JSON: {error.msg.lower()} at character {error.pos}"
        raise refused(HTTPStatus.BAD_REQUEST, message, "invalid_json") from None
    except (ValueError, RecursionError):
        # Not UTF-8, or a number of more than 4,300 digits.
        message = "the body is not valid JSON: expected UTF-8 and numbers of ordinary length"
        raise refused(HTTPStatus.BAD_REQUEST, message, "invalid_json") from None


def _refuse(name: str) -> Any:
    message = f"the body is not valid JSON: {name} is no number"
    raise refused(HTTPStatus.BAD_REQUEST, message, "invalid_json")


def _depth(body: bytes) -> int:
    brackets = _STRING.sub(b"", body).translate(None, _OTHER)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
