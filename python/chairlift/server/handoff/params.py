"""`kv_transfer_params`: what gateways that pair servers send to each of the two, and relay.

The names are those of vLLM's NixlConnector, whose form gateways know.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chairlift.api.checks import bad, flag, integer
from chairlift.api.errors import Reason, RequestError, echo

MAX_JSON_CHARACTERS: Final = 4096
"""The whole object as a text; this server's are shorter than 512."""
_TICKET: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_MAX_HOST_CHARACTERS: Final = 253
_OF_SOURCE: Final = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_KNOWN: Final = ("do_remote_decode", "do_remote_prefill", *_OF_SOURCE)


@dataclass(frozen=True, slots=True)
class Params:
    """A checked object, whose address is not trusted yet; no flag is set in one that is empty."""

    wants_ticket: bool = False
    """`do_remote_decode`: the answer says where the blocks of the prompt are."""
    has_source: bool = False
    """`do_remote_prefill`: the blocks of the prompt are on another server."""
    host: str = ""
    port: int = 0
    instance: str = ""
    ticket: str = ""


def from_json(text: str, path: str) -> object:
    """Return the value of a JSON text.

    Args:
        text: From a client.
        path: The field that has it, for errors.

    Raises:
        RequestError: It is too long, or no JSON.
    """
    if len(text) > MAX_JSON_CHARACTERS:
        expected = f"expected at most {MAX_JSON_CHARACTERS} characters"
        raise _wrong(path, f"{expected}, got {len(text)}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(path, "expected a JSON object, got a text that is none") from None


def parsed(value: object, path: str) -> Params:
    """Check an object; null is as good as absent.

    Args:
        value: From JSON.
        path: The field that has it, for errors.

    Raises:
        RequestError: With the path of the field that is wrong or unknown.
    """
    if not isinstance(value, dict):
        raise bad(path, "an object", value)
    given = {name: field for name, field in value.items() if field is not None}
    for name in given:
        if name not in _KNOWN:
            raise _wrong(f"{path}.{echo(name)}", "unknown field")
    wants_ticket = flag(given.get("do_remote_decode", False), f"{path}.do_remote_decode")
    has_source = flag(given.get("do_remote_prefill", False), f"{path}.do_remote_prefill")
    if wants_ticket and has_source:
        raise _wrong(f"{path}.do_remote_prefill", "expected false with do_remote_decode, got true")
    if has_source:
        return _with_source(given, path)
    for name in _OF_SOURCE:
        if name in given:
            raise _wrong(f"{path}.{name}", "expected none without do_remote_prefill")
    return Params(wants_ticket=wants_ticket)


def _with_source(given: Mapping[str, Any], path: str) -> Params:
    for name in _OF_SOURCE:
        if name not in given:
            raise _wrong(f"{path}.{name}", "expected a value with do_remote_prefill, got none")
    for name in ("remote_engine_id", "remote_request_id"):
        if not isinstance(given[name], str) or not _TICKET.fullmatch(given[name]):
            expected = "what a prefill server gave, 16 to 64 letters, digits, - and _"
            raise bad(f"{path}.{name}", expected, given[name])
    host = given["remote_host"]
    if not isinstance(host, str) or not 1 <= len(host) <= _MAX_HOST_CHARACTERS:
        raise bad(f"{path}.remote_host", f"a name of 1 to {_MAX_HOST_CHARACTERS} characters", host)
    return Params(
        has_source=True,
        host=host,
        port=integer(given["remote_port"], f"{path}.remote_port", 1, 65_535),
        instance=given["remote_engine_id"],
        ticket=given["remote_request_id"],
    )


def _wrong(path: str, message: str) -> RequestError:
    return RequestError(Reason.BAD_PARAMETER, f"{path}: {message}", field=path)
