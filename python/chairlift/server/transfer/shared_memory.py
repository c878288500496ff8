"""Memory that two servers of one host and user share: blocks that no message carries.

```text
decode server    makes a segment for a call, and names it in the request
prefill server   opens it by /proc/PID/fd/FD, checks it, and writes each block to the next slot
decode server    copies each block out of its slot, which is free then; ends it with the call
```

The request could name any file of any process, so the prefill server writes only to what a decode
server made for a transfer and told the caller of: a memfd of that name, with a nonce. Both sides
use system calls and map nothing. What the other does to the memory is then an error or a wrong
checksum, never a signal, and a block is hashed in private memory.
"""

import fcntl
import hmac
import os
import secrets
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Self

from chairlift.v1 import transfer_pb2 as pb

MAX_SLOT_BYTES: Final = 8 * 2**20
"""Bytes of all slots of a segment, and so of the blocks that wait in it."""
MAX_SLOTS: Final = 128
"""Less than what the one byte of freed slots counts."""
SLOTS_START: Final = 4096
NONCE_BYTES: Final = 16
_FREED_AT: Final = NONCE_BYTES
_FREED_MODULUS: Final = 256
"""The count is one byte, so that no reader sees half of a write."""
NAME: Final = "chairlift-blocks"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@cache
def host_id() -> str:
    """Return the name of this host and PID namespace; empty where they cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except (OSError, ValueError):
        return ""


class Segment:
    """The caller's side: made for one call, and read and closed by the thread of that call.

    Attributes:
        named: What the request says of it.
        num_slots: Blocks that it has room for.
    """

    def __init__(self, block_bytes: int, num_blocks: int) -> None:
        """Make a segment.

        Args:
            block_bytes: Bytes of a block.
            num_blocks: Blocks of the call: there are no more slots.

        Raises:
            OSError: There is no memory, no file or no support for it.
        """
        num_slots = min(num_blocks, MAX_SLOTS, MAX_SLOT_BYTES // block_bytes)
        if num_slots < 1 or not host_id():
            message = "no slot has room for a block" if host_id() else "the host is not known"
            raise OSError(message)
        self._block_bytes, self.num_slots = block_bytes, num_slots
        self._num_taken, self._is_closed = 0, False
        size, nonce = SLOTS_START + num_slots * block_bytes, secrets.token_bytes(NONCE_BYTES)
        self._file = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Memory that is missing is missed now, and is the owner's in the limits of its cgroup.
            os.posix_fallocate(self._file, 0, size)
            os.pwrite(self._file, nonce, 0)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(self._file)
            raise
        self.named = pb.SharedMemory(
            host=host_id(), pid=os.getpid(), fd=self._file, size=size, nonce=nonce
        )

    def take(self) -> bytes:
        """Return a copy of the next block, whose slot is free then."""
        start = SLOTS_START + self._num_taken % self.num_slots * self._block_bytes
        data = os.pread(self._file, self._block_bytes, start)
        self._num_taken += 1
        os.pwrite(self._file, bytes([self._num_taken % _FREED_MODULUS]), _FREED_AT)
        return data

    def close(self) -> None:
        """Free it, as soon as the other server has closed it, too; a second call has no effect."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._file)


class PeerSegment:
    """The segment of a caller, to which blocks are written."""

    def __init__(self, file: int, block_bytes: int, num_slots: int) -> None:
        """Take an open file that was checked: see `open`."""
        self.num_slots = num_slots
        self._file, self._block_bytes = file, block_bytes
        self._num_written = 0
        self._lock = threading.Lock()
        self._is_closed, self._num_users = False, 1

    @classmethod
    def open(cls, named: pb.SharedMemory, block_bytes: int) -> Self:
        """Open a segment of this host.

        Args:
            named: What the request says of it; nothing of it is trusted.
            block_bytes: Bytes of a block of this server.

        Raises:
            OSError: It cannot be opened, read or written.
            ValueError: It is not what a caller makes for a transfer, or not of this user.
        """
        num_slots = (named.size - SLOTS_START) // block_bytes
        if (
            not 1 <= num_slots <= MAX_SLOTS
            or num_slots * block_bytes > MAX_SLOT_BYTES
            or named.size != SLOTS_START + num_slots * block_bytes
            or len(named.nonce) != NONCE_BYTES
        ):
            message = f"a size of {named.size} bytes, a nonce of {len(named.nonce)}"
            raise ValueError(message)
        file = _open_memfd(named)
        try:
            if not hmac.compare_digest(os.pread(file, NONCE_BYTES, 0), named.nonce):
                message = "another nonce"
                raise ValueError(message)
        except BaseException:
            os.close(file)
            raise
        return cls(file, block_bytes, num_slots)

    @property
    def num_free(self) -> int:
        """Return how many blocks can be written now; 0 if it is closed."""
        with self._lock:
            if self._is_closed:
                return 0
            freed = os.pread(self._file, 1, _FREED_AT)[0]
        # A caller that counts wrong loses its own blocks: their checksums tell.
        return max(0, self.num_slots - (self._num_written - freed) % _FREED_MODULUS)

    def write(self, blocks: Sequence[bytes]) -> None:
        """Write blocks to the next slots; one thread at a time may call this.

        Raises:
            OSError: They could not be written, or it was closed.
        """
        with self._lock:
            if self._is_closed:
                message = "the segment is closed"
                raise OSError(message)
            self._num_users += 1
        try:
            for block in blocks:
                start = SLOTS_START + self._num_written % self.num_slots * self._block_bytes
                if os.pwrite(self._file, block, start) != self._block_bytes:
                    message = "a block was not written whole"
                    raise OSError(message)
                self._num_written += 1
        finally:
            with self._lock:
                self._leave()

    def close(self) -> None:
        """Close it now, or when the write that is under way ends; a second call has no effect.

        Another file may get the number of a closed one: a write must not go there.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._leave()

    def _leave(self) -> None:
        self._num_users -= 1
        if self._num_users == 0:
            os.close(self._file)


def _open_memfd(named: pb.SharedMemory) -> int:
    """Return a descriptor of the file that a caller names, if it is one that a `Segment` makes."""
    # To open a device or a pipe can have effects or wait: nothing is opened before it is known.
    handle = os.open(f"/proc/{named.pid}/fd/{named.fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{handle}"
        # The mount of memfds is no other file's, so that to ask further waits for no file system.
        if _mount_of(handle) != _mount_of_memfds():
            message = "no memfd"
            raise ValueError(message)
        if str(Path(path).readlink()) != f"/memfd:{NAME} (deleted)":
            message = "a memfd of another name"
            raise ValueError(message)
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or status.st_size != named.size:
            message = f"a memfd of user {status.st_uid} with {status.st_size} bytes"
            raise ValueError(message)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(handle)
    try:
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            message = "a memfd without the seals"
            raise ValueError(message)
        # Its size could change until it was known to be sealed.
        if os.fstat(file).st_size != named.size:
            message = "a memfd of another size"
            raise ValueError(message)
    except BaseException:
        os.close(file)
        raise
    return file


def _mount_of(file: int) -> str:
    """Return the number of the mount of an open file, without a question to its file system."""
    for line in Path(f"/proc/self/fdinfo/{file}").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return value.strip()
    message = "a mount that is not known"
    raise ValueError(message)


@cache
def _mount_of_memfds() -> str:
    file = os.memfd_create("chairlift-mount", os.MFD_CLOEXEC)
    try:
        return _mount_of(file)
    finally:
        os.close(file)
