"""Buffers that end where nobody may read or write on."""

import ctypes
import mmap
import weakref

import torch
from torch import Tensor

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def guarded(tensor: Tensor) -> Tensor:
    """Copy a tensor to memory that ends at most 15 bytes before a page without access.

    The page before the first one is without access, too. A kernel that touches one of them fails
    with a message; so would Python, but as a crash.
    """
    tensor = tensor.contiguous()
    num_bytes = -(-tensor.nbytes // 16) * 16
    pages = max(1, -(-num_bytes // _PAGE))
    length = (pages + 2) * _PAGE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if start is None or start == ctypes.c_void_p(-1).value:
        raise MemoryError
    end = start + (pages + 1) * _PAGE
    for page in (start, end):
        if _libc.mprotect(page, _PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    storage = (ctypes.c_ubyte * max(tensor.nbytes, 1)).from_address(end - max(num_bytes, 16))
    weakref.finalize(storage, _libc.munmap, start, length)
    copy = torch.frombuffer(storage, dtype=torch.uint8)[: tensor.nbytes].view(tensor.dtype)
    return copy.view(tensor.shape).copy_(tensor)
