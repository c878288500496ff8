"""The engines that Serve has told this process of.

Serve loads the class of a request router by value, in a module of its own: this one is the same for
the router, which runs on a thread of Serve, and for the ingress.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

Metadata = Mapping[str, Mapping[str, Any]]
"""What each replica publishes, by its tag."""

_lock = threading.Lock()
_found: Metadata = {}
_listener: Callable[[Metadata], object] | None = None


def publish(found: Metadata) -> None:
    """Set the replicas; called on any thread."""
    global _found
    with _lock:
        _found = dict(found)
        if _listener is not None:
            _listener(_found)


def listen(listener: Callable[[Metadata], object]) -> None:
    """Call a function with the replicas now, and whenever they change, on any thread."""
    global _listener
    with _lock:
        _listener = listener
        listener(_found)
