"""The routes of the live page."""

from starlette.routing import Route

from chairlift.server.calls.context import ServerContext
from chairlift.server.http.app import route
from chairlift.server.page.runs import RunRoutes


def routes(server: ServerContext) -> list[Route]:
    """Return the routes that have data of callers."""
    runs = RunRoutes(server)
    return [
        route("/page/runs", "POST", runs.start),
        route("/page/runs/{handle}/cancel", "POST", runs.cancel),
    ]
