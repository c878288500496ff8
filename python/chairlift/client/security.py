"""How a client authenticates its server and itself."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from chairlift.api.addresses import is_local
from chairlift.api.errors import ConfigError

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """TLS and a token; without any, the connection is plain text."""

    tls_ca: str | Path | None = None
    """PEM file of the authorities whose servers are trusted; None is plain text."""
    tls_cert: str | Path | None = None
    """PEM file of the client's own certificate, for a server that asks for one."""
    tls_key: str | Path | None = None
    """PEM file of that certificate's key."""
    token: str | None = field(default=None, repr=False)
    """The bearer token."""

    def __post_init__(self) -> None:
        """Check the types.

        Raises:
            ConfigError: A setting is of another type.
        """
        kinds = {"tls_ca": str | Path, "tls_cert": str | Path, "tls_key": str | Path, "token": str}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                expected = "text" if kind is str else "the path of a file"
                message = f"{name}: expected {expected}, got a value of type {type(value).__name__}"
                raise ConfigError(message)

    def credentials(self) -> Any:
        """Return `grpc.ChannelCredentials`, or None for plain text.

        Raises:
            ConfigError: A file cannot be read, or a setting lacks its other half.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            message = "tls_cert, tls_key: one needs the other"
            raise ConfigError(message)
        if self.tls_ca is None:
            if self.tls_cert is not None:
                message = "tls_cert: TLS needs tls_ca"
                raise ConfigError(message)
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.tls_ca, "tls_ca"),
            private_key=None if self.tls_key is None else _read(self.tls_key, "tls_key"),
            certificate_chain=None if self.tls_cert is None else _read(self.tls_cert, "tls_cert"),
        )

    def metadata(self, address: str) -> Metadata:
        """Return the metadata of every call.

        Raises:
            ConfigError: The token would cross a network in plain text, or cannot be sent.
        """
        if not self.token:
            return ()
        if not (self.token.isascii() and self.token.isprintable()):
            message = "token: expected printable ASCII"
            raise ConfigError(message)
        if self.tls_ca is None and not is_local(address):
            message = f"token: it would travel to {address} in plain text; TLS needs tls_ca"
            raise ConfigError(message)
        return (("authorization", f"Bearer {self.token}"),)


def _read(path: str | Path, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        message = f"{option}: cannot read {path}: {reason}"
        raise ConfigError(message) from None
