"""Pages of libraries leave the process, and come back unchanged."""

import re
import sys
from pathlib import Path

import pytest
from chairlift.model.weights.resident import release_library_pages

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def resident_of_files() -> int:
    """Return the kilobytes of mapped files in memory."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"^RssFile:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_released_pages_leave_the_process_and_come_back() -> None:
    import torch

    before, matrix = resident_of_files(), torch.arange(9.0).view(3, 3)
    release_library_pages()
    assert resident_of_files() < before
    assert (matrix @ torch.eye(3)).tolist() == matrix.tolist()
