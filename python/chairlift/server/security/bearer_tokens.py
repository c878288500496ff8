"""Bearer tokens and their tenants, from a file that is reloaded when it changes."""

import hashlib
import re
from pathlib import Path
from typing import Final

from chairlift.api.errors import ConfigError
from chairlift.server.security.reloading_file import FileRemovedError, ReloadingFile, read_file

_MIN_TOKEN_BYTES: Final = 16
_TENANT: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_TOKEN: Final = re.compile(rf"[!-~]{{{_MIN_TOKEN_BYTES},}}")

_Entries = dict[bytes, str]
"""The tenants of tokens by their digests."""


class BearerTokens:
    """The tenants of a token file; the tokens themselves are not kept, only their digests.

    One `TENANT:TOKEN` or `TENANT:sha256:HEX` per line; `#` begins a comment line. A tenant may have
    several tokens, a token one tenant. A file that is deleted or holds no token withdraws all of
    them; one that is malformed otherwise changes nothing until it is corrected.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: It cannot be read, is world-readable, or has a malformed line. The message
                quotes nothing of it.
        """
        self._tenants: ReloadingFile[_Entries] = ReloadingFile(
            (path,), lambda: _read(path), if_missing={}
        )

    def tenant_of(self, token: bytes) -> str | None:
        """Return the tenant of a token; None if it is unknown.

        The time does not depend on how many tokens there are. What it may tell is about digests,
        and to choose a digest is as hard as to find a token.
        """
        return self._tenants.current().get(hashlib.sha256(token).digest())


def _read(path: Path) -> _Entries:
    entries: dict[bytes, str] = {}
    data = read_file(path, "auth_tokens", is_secret=True)
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        tenant, _, secret = text.partition(":")
        digest = _digest_of(secret)
        if not _TENANT.fullmatch(tenant) or digest is None:
            message = (
                f"auth_tokens: {path}, line {number}: expected TENANT:TOKEN of at least "
                f"{_MIN_TOKEN_BYTES} characters without spaces, or TENANT:sha256:HEX"
            )
            raise ConfigError(message)
        if entries.setdefault(digest, tenant) != tenant:
            message = f"auth_tokens: {path}, line {number}: another tenant has the same token"
            raise ConfigError(message)
    if not entries:
        message = f"auth_tokens: {path} holds no token"
        raise FileRemovedError(message)
    return entries


def _digest_of(secret: str) -> bytes | None:
    if secret.startswith("sha256:"):
        match = _DIGEST.fullmatch(secret)
        return None if match is None else bytes.fromhex(match[1])
    return hashlib.sha256(secret.encode()).digest() if _TOKEN.fullmatch(secret) else None
