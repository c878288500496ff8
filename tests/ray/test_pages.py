"""The tutorial and the example on a local Ray; skipped where Ray is not installed."""

import asyncio
import importlib.util
import shlex
import subprocess
import sys
from contextlib import ExitStack

import pytest
from chairlift.client import connect_async

from tests.cli.conftest import chairlift, environment
from tests.cli.pages import ROOT, Reader, blocks, prepare
from tests.examples.conftest import run, shown
from tests.ray.cluster import port, running, until_up

__all__ = ["chairlift", "run"]

pytestmark = [
    # Ray waits for none of the processes that it starts.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.timeout(600),
    # One cluster for all tests of this file, one after another.
    pytest.mark.xdist_group("ray"),
]

PAGE = ROOT / "docs" / "tutorials" / "two-replicas.md"


def serve_run(block):
    return block.code.startswith(".tools/ray/bin/serve run ")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Run what the tutorial starts, on free ports."""
    (block,) = filter(serve_run, blocks(PAGE))
    target, *settings = shlex.split(block.code)[2:]
    assert target == "chairlift.ray:build"
    values = dict(setting.split("=") for setting in settings)
    with running(tmp_path_factory.mktemp("ray"), port(), port(), **values) as found:
        asyncio.run(both_up(found.address))
        yield found


async def both_up(address):
    async with connect_async(address) as client:
        await until_up(client, 2)


def test_the_tutorial_prints_what_it_shows(cluster, chairlift, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    addresses = {
        "127.0.0.1:50051": cluster.address,
        "127.0.0.1:8000": cluster.http.removeprefix("http://"),
    }
    with ExitStack() as stack:
        reader = Reader(chairlift, stack, addresses=addresses)
        reader.read(block for block in blocks(PAGE) if not serve_run(block))


def test_the_example_prints_what_its_page_shows(cluster, run):
    printed = run("ray/replicas.py", cluster.address)
    # Questions of a test before are cached.
    assert [line.partition(",")[0] for line in printed.splitlines()] == [
        line.partition(",")[0] for line in shown("ray/replicas.py").splitlines()
    ]


def test_the_demo_kills_an_engine_and_ray_replaces_it():
    demo = [sys.executable, "-m", "chairlift.ray.demo"]
    done = subprocess.run(demo, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert "Serve has replaced it: two engines again" in done.stdout
