"""The dashboard draws metrics that a server has."""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.server.connection import start

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "chairlift.json"


def panels():
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


def queries():
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def metrics_of(query):
    """Names in a query: words that are followed by the braces of labels."""
    return re.findall(r"([a-z_:]+)\{", query)


def test_every_query_names_a_metric_and_has_balanced_parentheses():
    assert len(queries()) > 20
    for query in queries():
        assert metrics_of(query), query
        assert query.count("(") == query.count(")"), query


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.fixture
async def exposed(serve, free_port):
    """What a server exposes after a request."""
    async with serve(server={"metrics_listen": f"127.0.0.1:{free_port}"}) as server:
        await server.say(start("a"))
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics") as response:
            yield response.read().decode()


async def test_every_metric_of_every_query_is_exposed(exposed):
    names = set(re.findall(r"^([a-z_:]+)", exposed, re.MULTILINE))
    # A counter by reason has no sample before the first of that reason.
    declared = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)", exposed, re.MULTILINE))
    missing = {n for query in queries() for n in metrics_of(query)} - names - declared
    assert not missing
