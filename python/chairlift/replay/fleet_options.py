"""What a fleet of replicas is, beside the settings of each replica."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

MAX_REPLICAS: Final = 4096


class Routing(StrEnum):
    """How a replica is chosen for a request."""

    ROUND_ROBIN = "round-robin"
    LOWEST_LOAD = "least-load"
    PREFIX = "prefix"
    BOTH = "both"


class FleetOptions(BaseModel):
    """The replicas, their router, and what happens to them."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    """Servers of one model behind a router, 1 to 4096; with --min-replicas at most."""
    routing: Routing = Routing.BOTH
    """How a replica is chosen; both, the default, weighs prefix and load."""
    roles: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}:[1-9][0-9]{0,3}$")] | None = None
    """Replicas that compute prompts, and those that draw, say 1:3; default: all do both."""
    transfer_per_token_s: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Time of a token's keys and values on the link of a prefill replica; default: none."""
    blocks_per_replica: Annotated[int, Field(ge=1)] | None = None
    """KV blocks of each replica; default: the trace's."""
    infinitely_fast: bool = False
    """Steps take no time: the caches alone are compared."""
    routers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Routers that take turns, each knowing its own requests only; default: 1."""
    router_lag_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Time from a router to a replica, and back; default: none."""
    report_interval_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    """How often replicas report their load to all routers; default: never."""
    failures_per_hour: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Losses of each replica; default: none."""
    detection_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """Time until the routers know of a loss; default: 5s."""
    restart_s: Annotated[float, Field(ge=0, le=86400)] = 60.0
    """Time until a lost or a new replica takes requests, with an empty cache; default: 60s."""
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Replicas of the autoscaler at least; default: no autoscaler."""
    target_requests: Annotated[int, Field(ge=1)] = 32
    """Requests in flight that the autoscaler wants for each replica; default: 32."""
    scale_up_delay_s: Annotated[float, Field(ge=0, le=86400)] = 30.0
    """How long more replicas must be wanted before they start; default: 30s."""
    scale_down_delay_s: Annotated[float, Field(ge=0, le=86400)] = 600.0
    """How long fewer must be wanted before some are drained; default: 600s."""
    day_s: Annotated[float, Field(gt=0, le=1e7)] | None = None
    """Length of a day whose hours have the load of a usual day; default: arrivals as they are."""

    @property
    def num_prefill(self) -> int:
        """Replicas that compute prompts for the others."""
        return 0 if self.roles is None else int(self.roles.partition(":")[0])


def num_replicas(roles: str) -> int:
    """Return the number of replicas of roles `P:D`."""
    return sum(map(int, roles.split(":")))


OF_FAILURES = ("detection_s",)
"""Settings that mean something with `failures_per_hour` alone."""

OF_STARTS = ("restart_s",)
"""Settings that mean something with `failures_per_hour` or `min_replicas`."""

OF_ROLES = ("transfer_per_token_s",)
"""Settings that mean something with `roles` alone."""

WITHOUT_ROLES = ("failures_per_hour", "min_replicas", "infinitely_fast")
"""Settings that have no meaning with `roles`."""

OF_AUTOSCALER = ("target_requests", "scale_up_delay_s", "scale_down_delay_s")
"""Settings that mean something with `min_replicas` alone."""
