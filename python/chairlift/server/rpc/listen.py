"""The listening address: a Unix socket or TCP, and whether other machines can reach it.

When its listener ends, gRPC removes the path that it was bound to, even if another server's socket
is there by then. So the server binds a name that no other server uses, and renames it:

    bind .3f9a01c7 ──▶ rename to lift.sock ──▶ serve ──▶ remove lift.sock if it is still this socket
"""

import fcntl
import ipaddress
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chairlift.api.errors import ConfigError

_MAX_UNIX_PATH_BYTES: Final = 107
_MAX_UNIX_FOLDER_BYTES: Final = 97
"""The system's limit, less the length of the private name."""
_LOCK_S: Final = 5.0
"""Wait for another server that starts in the same folder; it holds the lock for milliseconds."""
_LOCK_PERIOD_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """An address of this machine, or all of them (`0.0.0.0`, `[::]`)."""

    host: str
    """An IP address, without brackets."""
    port: int
    """0 lets the system choose."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """Return the address family, IPv4 or IPv6."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket in the file system."""

    path: Path
    inode: tuple[int, int] | None = None
    """Device and inode of a socket that is bound."""

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_address(text: str, option: str) -> TcpAddress | UnixAddress:
    """Parse `HOST:PORT` or `unix:PATH`.

    Args:
        text: The value of the option.
        option: Its name, for errors.

    Raises:
        ConfigError: It is neither.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path or len(os.fsencode(path)) > _MAX_UNIX_PATH_BYTES:
            message = (
                f"{option}: expected unix:PATH of 1 to {_MAX_UNIX_PATH_BYTES} bytes, got {text!r}"
            )
            raise ConfigError(message)
        if len(os.fsencode(Path(path).parent)) > _MAX_UNIX_FOLDER_BYTES:
            message = (
                f"{option}: expected unix:PATH in a folder whose path has at most "
                f"{_MAX_UNIX_FOLDER_BYTES} bytes, got {text!r}"
            )
            raise ConfigError(message)
        return UnixAddress(Path(path))
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        message = f"{option}: expected HOST:PORT or unix:PATH, got {text!r}"
        raise ConfigError(message)
    return TcpAddress(_host(host, text, option), int(port))


def _host(host: str, text: str, option: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        message = f"{option}: expected localhost or an IP address before the port, got {text!r}"
        raise ConfigError(message) from None
    return str(address)


def check_private(address: TcpAddress | UnixAddress, option: str, remedy: str) -> None:
    """Refuse an address that other machines can reach.

    Args:
        address: Where to listen.
        option: The option's name, for the error.
        remedy: Advice at the end of the error.

    Raises:
        ConfigError: It is neither loopback nor a Unix socket.
    """
    if isinstance(address, TcpAddress) and not address.is_loopback:
        message = f"{option}: {address} can be reached from other machines; {remedy}"
        raise ConfigError(message)


def bind(
    server: Any, address: TcpAddress | UnixAddress, option: str, credentials: Any = None
) -> TcpAddress | UnixAddress:
    """Bind a gRPC server.

    Args:
        server: Not started yet.
        address: Where to listen.
        option: The option's name, for errors.
        credentials: `grpc.ServerCredentials`; None is plain text.

    Returns:
        The address with the port that the system chose, or the socket that was made.

    Raises:
        ConfigError: The address is in use or unusable; the message is one line.
    """
    if isinstance(address, TcpAddress):
        _check_free(address, option)
        return TcpAddress(address.host, _add_port(server, address, option, credentials))
    with _locked_folder(address.path.parent, address, option):
        _check_dead(address, option)
        private = UnixAddress(address.path.with_name(f".{secrets.token_hex(4)}"))
        with _private_files():
            _add_port(server, private, option, credentials)
        inode = _inode(private.path)
        private.path.rename(address.path)
    return UnixAddress(address.path, inode)


def unbind(address: TcpAddress | UnixAddress) -> None:
    """Remove the socket file that `bind` made, before the server is stopped.

    A file that was replaced meanwhile is another server's and is kept: while this server lives, no
    other file can have its inode. The file is also kept if another process holds the folder's lock;
    the next server replaces it.
    """
    if not isinstance(address, UnixAddress) or address.inode is None:
        return
    with suppress(OSError), _locked(address.path.parent, within_s=0):
        if _inode(address.path) == address.inode:
            address.path.unlink()


def _inode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _add_port(server: Any, address: TcpAddress | UnixAddress, option: str, credentials: Any) -> int:
    try:
        if credentials is None:
            port = int(server.add_insecure_port(str(address)))
        else:
            port = int(server.add_secure_port(str(address), credentials))
    except RuntimeError:
        port = 0
    if port == 0:
        message = f"{option}: cannot listen on {address}"
        raise ConfigError(message)
    return port


def _check_free(address: TcpAddress, option: str) -> None:
    """Bind a socket first: its error is one line, gRPC's is a page."""
    with closing(socket.socket(address.family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            message = f"{option}: cannot listen on {address}: {_reason(error)}"
            raise ConfigError(message) from None


@contextmanager
def _locked_folder(folder: Path, address: UnixAddress, option: str) -> Iterator[None]:
    """Lock a folder against other servers that start in it, and refuse an unsafe folder.

    If two servers find a dead socket, the second would otherwise remove that of the first. In
    a folder where other users may rename files, one of them could replace the socket.
    """
    try:
        mode = folder.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            message = f"{option}: other users could replace {address}: they can write to its folder"
            raise ConfigError(message)
        with _locked(folder, _LOCK_S):
            yield
    except BlockingIOError:
        message = f"{option}: cannot listen on {address}: another process locks its folder"
        raise ConfigError(message) from None
    except OSError as error:
        message = f"{option}: cannot listen on {address}: {_reason(error)}"
        raise ConfigError(message) from None


@contextmanager
def _locked(folder: Path, within_s: float) -> Iterator[None]:
    until = time.monotonic() + within_s
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOCK_PERIOD_S)
        yield
    finally:
        os.close(handle)


def _check_dead(address: UnixAddress, option: str) -> None:
    """Refuse a path where another server listens, or that is no socket."""
    path = address.path
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        message = f"{option}: cannot listen on {address}: the file exists and is no socket"
        raise ConfigError(message)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        # A server that lives but does not accept, one in a debugger say, must not block this one.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            pass
        except (ConnectionRefusedError, FileNotFoundError):
            return
    message = f"{option}: cannot listen on {address}: another server does"
    raise ConfigError(message)


@contextmanager
def _private_files() -> Iterator[None]:
    """Make new files accessible to their owner only, from their creation on."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _reason(error: OSError) -> str:
    return (error.strerror or "unknown error").lower()
