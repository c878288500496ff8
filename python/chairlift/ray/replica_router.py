"""What Serve asks for a replica of the engine: it tells the ingress which there are.

Serve routes a stream once, before its first message, so that it cannot choose by prompt for each
request of a stream. The ingress chooses by itself; this class passes on what Serve knows.
"""

from typing import Any

from ray.serve.request_router import RequestRouter


class ReplicaRouter(RequestRouter):  # type: ignore[misc]  # Ray is not a part of the checks
    """Publishes the replicas of the engine in this process."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take the replicas that run now."""
        # Serve pickles this module by value: what is imported here is the module of the process.
        from chairlift.ray import published

        super().update_replicas(replicas)
        published.publish({r.replica_id.unique_id: r.replica_metadata for r in replicas})

    async def choose_replicas(
        self,
        candidate_replicas: list[Any],
        pending_request: Any = None,  # noqa: ARG002, Serve passes it by name
    ) -> list[list[Any]]:
        """Return all: calls by a handle, which are none of requests, go to any."""
        return [candidate_replicas]
