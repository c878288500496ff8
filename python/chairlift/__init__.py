"""Language models served with continuous batching and paged attention over one gRPC stream.

`Engine` and `AsyncEngine` load torch only when they are asked for, so that a client may
`import chairlift` on a machine that has none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from chairlift.api.errors import ChairliftError, ConfigError, ModelError, RequestError
from chairlift.api.types import (
    Answer,
    Chat,
    ChatMessage,
    Constraint,
    Output,
    Request,
    Sampling,
    Stopping,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
)

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine as AsyncEngine
    from chairlift.engine.engine import Engine as Engine

__all__ = [
    "Answer",
    "AsyncEngine",
    "ChairliftError",
    "Chat",
    "ChatMessage",
    "ConfigError",
    "Constraint",
    "Engine",
    "ModelError",
    "Output",
    "Request",
    "RequestError",
    "Sampling",
    "Stopping",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolMode",
]

_LAZY = {"Engine": "chairlift.engine.engine", "AsyncEngine": "chairlift.engine.async_engine"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
