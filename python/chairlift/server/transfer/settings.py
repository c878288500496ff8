"""The settings of a server with a role, checked before the model is read."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chairlift.api.addresses import checked_address, is_local
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError
from chairlift.engine.transfer.settings import check_settings
from chairlift.server.config import Role, ServerConfig
from chairlift.server.security.reloading_file import read_file

_OF_DECODE: Final = ("prefill_peers", "prefill_token", "prefill_ca")
_TOKEN: Final = re.compile(r"[!-~]{16,4096}")


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How prefill servers are reached."""

    addresses: tuple[str, ...]
    token: str | None
    ca: bytes | None
    """PEM of the authorities of their certificates; None is plain text."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def peer_settings(config: ServerConfig, engine_config: EngineConfig) -> PeerSettings | None:
    """Check what belongs to the role of a server.

    Returns:
        How a decode server reaches its prefill servers; None without that role.

    Raises:
        ConfigError: A setting is missing, malformed, not safe, or belongs to another role.
    """
    if config.role is not Role.DECODE:
        set_names = [name for name in _OF_DECODE if getattr(config, name) is not None]
        if config.strict_roles:
            set_names.append("strict_roles")
        if set_names:
            message = f"{set_names[0]}: expected none without role decode"
            raise ConfigError(message)
    if config.role is None:
        return None
    check_settings(engine_config, f"role {config.role}")
    if config.role is Role.PREFILL:
        return None
    if config.prefill_peers is None:
        message = "prefill_peers: expected addresses of prefill servers with role decode, got none"
        raise ConfigError(message)
    for address in config.prefill_peers:
        if not is_local(checked_address(address, "prefill_peers")) and config.prefill_ca is None:
            message = f"prefill_peers: {address} is beyond this machine, and needs prefill_ca (TLS)"
            raise ConfigError(message)
    return PeerSettings(config.prefill_peers, _token(config), _ca(config))


def _token(config: ServerConfig) -> str | None:
    if config.prefill_token is None:
        return None
    path = Path(config.prefill_token)
    text = read_file(path, "prefill_token", is_secret=True).decode(errors="replace").strip()
    if not _TOKEN.fullmatch(text):
        message = f"prefill_token: {path}: expected one token of at least 16 characters"
        raise ConfigError(message)
    return text


def _ca(config: ServerConfig) -> bytes | None:
    if config.prefill_ca is None:
        return None
    return read_file(Path(config.prefill_ca), "prefill_ca", is_secret=False)
