import pytest

from tests.chaos.lab import Lab


@pytest.fixture(scope="session")
def lab(tiny_folder, tmp_path_factory):
    """Servers that the scenarios share; at the end they must shut down in order."""
    lab = Lab(tiny_folder, tmp_path_factory.mktemp("chaos"))
    yield lab
    lab.close()
