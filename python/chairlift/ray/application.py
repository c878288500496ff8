"""The application of Ray Serve."""

from typing import Any, Final

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from chairlift.api.config import checked
from chairlift.ray.engine import Engine
from chairlift.ray.ingress import Ingress
from chairlift.ray.settings import RaySettings

_MANY: Final = 100_000
"""Requests of Serve at once: engines and their queues set the limit."""
_HEALTH_PERIOD_S: Final = 2.0
"""An engine that is lost is replaced after three checks."""


def application(args: dict[str, Any]) -> Any:
    """Return the application.

    Args:
        args: Values of `RaySettings`.

    Raises:
        ConfigError: A setting is wrong.
    """
    settings = checked(RaySettings, **args)
    values = settings.model_dump()
    options: dict[str, Any] = {
        "max_ongoing_requests": _MANY,
        "graceful_shutdown_timeout_s": settings.shutdown_s,
        "health_check_period_s": _HEALTH_PERIOD_S,
    }
    engines = serve.deployment(Engine).options(
        **options,
        **_size(settings),
        ray_actor_options=settings.actor_options,
        request_router_config=RequestRouterConfig(
            request_router_class="chairlift.ray.replica_router.ReplicaRouter"
        ),
    )
    ingress = serve.deployment(Ingress).options(
        **options,
        num_replicas=settings.num_ingresses,
        max_replicas_per_node=1,
        # It waits for engines most of the time.
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(engines.bind(values), values)


def _size(settings: RaySettings) -> dict[str, Any]:
    if settings.max_replicas is None:
        return {"num_replicas": settings.num_replicas}
    policy = AutoscalingPolicy(
        policy_function="chairlift.ray.policy:Tokens",
        policy_kwargs={"target_tokens": settings.target_tokens},
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=settings.min_replicas,
            initial_replicas=settings.num_replicas,
            max_replicas=settings.max_replicas,
            upscale_delay_s=settings.scale_up_delay_s,
            downscale_delay_s=settings.scale_down_delay_s,
            policy=policy,
        )
    }
