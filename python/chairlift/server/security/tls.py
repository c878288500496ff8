"""Certificates of the listener: checked when they are read, reloaded when their files change."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig
from chairlift.server.security.reloading_file import ReloadingFile, read_file


@dataclass(frozen=True, slots=True)
class _Files:
    cert: Path
    key: Path
    client_ca: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files."""
        return tuple(path for path in (self.cert, self.key, self.client_ca) if path is not None)

    def load(self) -> Any:
        """Read and check all files; return gRPC's certificate configuration."""
        key = read_file(self.key, "tls_key", is_secret=True)
        cert = read_file(self.cert, "tls_cert")
        _check_pair(self.cert, self.key)
        roots = None
        if self.client_ca is not None:
            roots = read_file(self.client_ca, "tls_client_ca")
            _check_roots(self.client_ca)
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def context(self) -> ssl.SSLContext:
        """Read and check all files; return a context of OpenSSL for HTTP/1.1."""
        self.load()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        context.set_alpn_protocols(["http/1.1"])
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.client_ca)
        return context


def _files(config: ServerConfig) -> _Files | None:
    """Return the files that the settings name, or None if they name no certificate.

    Raises:
        ConfigError: One is missing that belongs to another.
    """
    if config.tls_cert is None or config.tls_key is None:
        given = {"tls_cert": config.tls_cert, "tls_key": config.tls_key}
        given["tls_client_ca"] = config.tls_client_ca
        if named := [name for name, value in given.items() if value is not None]:
            message = f"{named[0]}: TLS needs both tls_cert and tls_key"
            raise ConfigError(message)
        return None
    client_ca = None if config.tls_client_ca is None else Path(config.tls_client_ca)
    return _Files(Path(config.tls_cert), Path(config.tls_key), client_ca)


def server_credentials(config: ServerConfig) -> Any:
    """Return the credentials of the gRPC listener, or None if the settings name no certificate.

    Open connections keep the certificate of their handshake.

    Raises:
        ConfigError: A file is missing, cannot be used, or does not fit another.
    """
    files = _files(config)
    if files is None:
        return None
    certificates = ReloadingFile(files.paths, files.load)
    first = certificates.current()
    return grpc.dynamic_ssl_server_credentials(
        first, certificates.current, require_client_authentication=files.client_ca is not None
    )


def server_context(config: ServerConfig) -> ssl.SSLContext | None:
    """Return the context of an HTTP listener; as `server_credentials` otherwise."""
    files = _files(config)
    if files is None:
        return None
    contexts = ReloadingFile(files.paths, files.context)
    first = contexts.current()

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = contexts.current()

    first.sni_callback = choose
    return first


_NAME_KEYS: Final = {
    "URI": "peer_uri",
    "DNS": "peer_dns",
    "email": "peer_email",
    "IP Address": "peer_ip",
    "commonName": "x509_common_name",
}
"""Kinds of names as Python's `ssl` has them, and as gRPC calls their properties."""


def peer_names(transport: asyncio.BaseTransport) -> Mapping[str, Sequence[bytes]]:
    """Return the names in the verified certificate of a connection's client; none without one.

    Raises:
        ValueError: The handshake has not ended.
    """
    ssl_object = transport.get_extra_info("ssl_object")
    return {} if ssl_object is None else certificate_names(ssl_object.getpeercert() or {})


def certificate_names(certificate: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """Return the names in a verified certificate, as gRPC's `auth_context` has them.

    Args:
        certificate: From `ssl.SSLObject.getpeercert`.
    """
    subject = (name for names in certificate.get("subject", ()) for name in names)
    found: dict[str, list[bytes]] = {}
    for kind, text in (*certificate.get("subjectAltName", ()), *subject):
        if kind in _NAME_KEYS:
            found.setdefault(_NAME_KEYS[kind], []).append(text.encode())
    return found


def _check_pair(cert: Path, key: Path) -> None:
    """Load the pair with OpenSSL: gRPC reports a bad one only when the first client connects."""

    def no_password() -> str:
        message = f"tls_key: {key} is encrypted; a key without a password is needed"
        raise ConfigError(message)

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"tls_key: {key} is not the key of the certificate in {cert}"
        else:
            message = f"tls_cert, tls_key: expected a certificate and its key in PEM: {cert}, {key}"
        raise ConfigError(message) from None


def _check_roots(path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError:
        message = f"tls_client_ca: expected certificates in PEM: {path}"
        raise ConfigError(message) from None
