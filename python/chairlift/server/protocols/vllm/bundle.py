"""The archive of `GetTokenizer`: the tokenizer as it runs, whatever file the model came in."""

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from chairlift.server.protocols.stubs import smg_common_pb2 as common

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

_CHUNK_BYTES: Final = 64 * 2**10
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The time of each entry: equal tokenizers have equal archives."""


class TokenizerBundle:
    """Built at the first call, off the event loop, and kept."""

    def __init__(self) -> None:
        self._chunks: tuple[common.GetTokenizerChunk, ...] = ()
        self._lock = asyncio.Lock()

    async def chunks(self, engine: "AsyncEngine") -> tuple[common.GetTokenizerChunk, ...]:
        """Return the messages; the last one has the digest of the archive."""
        async with self._lock:
            if not self._chunks:
                self._chunks = await asyncio.to_thread(lambda: tuple(_chunks(_archive(engine))))
        return self._chunks


def _archive(engine: "AsyncEngine") -> bytes:
    model = engine.engine.model_config
    config = {
        "architectures": [model.architecture],
        "vocab_size": model.spec.vocab_size,
        "max_position_embeddings": model.max_model_len,
        "eos_token_id": list(model.eos_token_ids),
        "bos_token_id": model.bos_token_id,
    }
    files = engine.engine.tokenizer.files() | {"config.json": json.dumps(config)}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED)
    return data.getvalue()


def _chunks(data: bytes) -> Iterator[common.GetTokenizerChunk]:
    for start in range(0, len(data), _CHUNK_BYTES):
        end = start + _CHUNK_BYTES
        digest = hashlib.sha256(data).hexdigest() if end >= len(data) else ""
        yield common.GetTokenizerChunk(data=data[start:end], sha256=digest)
