"""Models that an engine converts once, before it is measured."""

import hashlib
import sys
from pathlib import Path

from benchmarks.peers.processes import call

QUANTIZED = ("int8", "int4")
"""Formats that `chairlift quantize` makes."""
HOME = Path(__file__).parents[2] / ".tools" / "peers" / "converted"


def fingerprint(model: Path) -> str:
    """Return a name of a model and its files, which changes when a file does."""
    files = sorted(path for path in model.glob("*") if path.is_file()) or [model]
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((str(model.resolve()), facts)).encode()).hexdigest()[:12]


def quantized(model: Path, weight_format: str) -> Path:
    """Return a model as `chairlift quantize` stores it.

    Raises:
        PeerError: It cannot be quantized.
    """
    out = HOME / f"chairlift-{weight_format}-{fingerprint(model)}"
    if not out.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        chairlift = Path(sys.executable).with_name("chairlift")
        call([chairlift, "quantize", model, out, "--format", weight_format])
    return out
