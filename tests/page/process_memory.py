"""The memory of a process, for programs that have no packages."""

import re
from pathlib import Path


def anonymous_mib(process_id: int) -> float:
    """Return the anonymous memory of a process: all but its files and what it shares."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024
