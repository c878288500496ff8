"""Replicas of a server on Ray Serve; needs `chairlift[ray]`.

    serve run chairlift.ray:build model=demo num_replicas=2

`forward/` is the ingress without Ray.
"""

from typing import Any


def build(args: dict[str, Any]) -> Any:
    """Return the application of Ray Serve: engines, and an ingress in front of them.

    Args:
        args: Values of `chairlift.ray.settings.RaySettings`.

    Raises:
        ConfigError: A setting is wrong.
    """
    from chairlift.ray.application import application

    return application(args)
