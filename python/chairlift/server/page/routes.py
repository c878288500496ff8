"""The routes of the live page."""

from starlette.routing import Route

from chairlift.server.calls.context import ServerContext
from chairlift.server.http.app import route
from chairlift.server.page.feed import FeedRoute
from chairlift.server.page.runs import RunRoutes
from chairlift.server.services.overview import Overview


def routes(server: ServerContext, overview: Overview) -> list[Route]:
    """Return the routes that have data of callers."""
    runs, feed = RunRoutes(server), FeedRoute(server, overview)
    return [
        route("/page/feed", "GET", feed.serve),
        route("/page/runs", "POST", runs.start),
        route("/page/runs/{handle}/cancel", "POST", runs.cancel),
    ]
