"""What ranks on several hosts have to have in common, so that their parts are of one model."""

import hashlib
import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from chairlift import _core
from chairlift.checkpoints.files.fields import open_regular
from chairlift.checkpoints.files.folder import CONFIG, is_gguf, parts_of

_SAMPLES: Final = 64
"""Places at which a file is read."""
_SAMPLE_BYTES: Final = 4096


class Facts(NamedTuple):
    """What a rank says of itself before it gets its part."""

    version: str
    kernels: str
    """Instruction set: layers of bfloat16 have other bits with another one."""
    model: str
    """Hash of the names and sizes of the files of weights, and of what is at some of their
    places."""

    @classmethod
    def of(cls, model: Path) -> "Facts":
        """Collect those of this process.

        Args:
            model: Folder or file.

        Raises:
            OSError: A file cannot be read.
            ModelError: A file is no regular one.
        """
        return cls(_core.__version__, _core.cpu_features(), _sampled_hash(model))

    @classmethod
    def of_text(cls, text: str) -> "Facts":
        """Read what another rank says; of another version it may say anything."""
        try:
            return cls(*map(str, json.loads(text)))
        except (TypeError, ValueError):
            return cls("another", "", "")

    def difference(self, other: "Facts") -> str | None:
        """Return what the first fact is that another rank does not share; None where all are."""
        for name, expected, got in zip(self._fields, self, other, strict=True):
            if got != expected:
                return f"{name}: expected {expected}, as rank 0 has, got {got}"
        return None


def _sampled_hash(model: Path) -> str:
    if is_gguf(model):
        files = parts_of(model)
    else:
        weights = sorted([*model.glob("*.safetensors"), *model.glob("*.gguf")])
        files = [model / CONFIG, *weights]
    found = hashlib.blake2b(digest_size=8)
    for path in files:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            found.update(f"{path.name} {size} ".encode())
            for sample in range(_SAMPLES):
                file.seek(size * sample // _SAMPLES)
                found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()
