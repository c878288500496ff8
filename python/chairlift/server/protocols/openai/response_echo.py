"""What a response repeats of its request.

The echo is kept as JSON text. A request that can be resumed keeps it as long as its events, and
text takes less memory than a Python object for each value.
"""

from typing import Any

from chairlift.api.checks import bad
from chairlift.server.http.json_pieces import to_json
from chairlift.server.protocols.openai.fields import Fields

_AS_SENT = (
    *("temperature", "top_p", "max_output_tokens", "max_tool_calls", "top_logprobs"),
    *("user", "safety_identifier", "prompt_cache_key"),
)


class Repeated:
    """The fields of a response that repeat those of its request."""

    def __init__(self, body: Fields) -> None:
        """Read what is repeated as it was sent; nothing is taken.

        Raises:
            RequestError: The metadata is no object.
        """
        metadata = body.peek("metadata", {})
        if not isinstance(metadata, dict):
            raise bad("metadata", "an object", metadata)
        self._tools = body.peek("tools", [])
        self._values: dict[str, Any] = {
            "background": False,
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            **{name: body.peek(name, None) for name in _AS_SENT},
            "metadata": metadata,
            "parallel_tool_calls": body.peek("parallel_tool_calls", True),
            "tool_choice": body.peek("tool_choice", "auto"),
            "truncation": body.peek("truncation", "disabled"),
        }

    def set(self, name: str, value: object) -> None:
        """Set what was read from several fields."""
        self._values[name] = value

    def json(self) -> bytes:
        """Return the fields as members of an object, whose types have been checked."""
        assert isinstance(self._tools, list), "invariant: the tools are taken"
        tools = [_tool(tool) for tool in self._tools]
        return to_json({**self._values, "tools": tools})[1:-1]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with the members that the API has for each function."""
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": {}, "strict": False, **tool}
