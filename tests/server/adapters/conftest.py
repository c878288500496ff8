import pytest


@pytest.fixture
def others(serve):
    """Serve the tiny model by the protocols of other servers, too."""

    def run(*, server=None, **settings):
        names = {"protocol": ("vllm", "oip"), "served_model_name": "tiny"}
        return serve(server=names | (server or {}), **settings)

    return run
