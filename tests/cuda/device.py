"""Launches a kernel on a GPU as the emulation does on the CPU: tensors go there and come back."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from chairlift.kernels.cuda.build import architecture_of, compile_kernel
from torch import Tensor

from tests.cuda.emulation import preload
from tests.cuda.emulation.library import Argument, signature_of
from tests.cuda.instantiations import tested_instances


def _checked(result: tuple[Any, ...]) -> Any:
    """The values of a driver call, or its error as an exception."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(str(status))
    return values[0] if values else None


@cache
def _function(name: str, shared_bytes: int) -> Any:
    from cuda.bindings import driver

    torch.zeros(1, device="cuda")  # makes the context
    compiled = compile_kernel(name, architecture_of(*torch.cuda.get_device_capability()))
    module = _checked(driver.cuModuleLoadData(compiled.code))
    function = _checked(driver.cuModuleGetFunction(module, compiled.symbol))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
    return function


def launch(
    name: str,
    grid: Sequence[int],
    num_threads: int,
    shared_bytes: int,
    args: Sequence[Argument],
) -> None:
    """Run a kernel on copies of the tensors and bring what it changed back.

    Whole storages are copied, each once: a tensor may be strided, and two may share memory.
    Whether a number is an `int` or a `long long` is the signature's to say, which the emulation of
    the same kernel knows.
    """
    from cuda.bindings import driver

    kernel = name.partition("<")[0]
    preload(other for other in tested_instances() if other.partition("<")[0] == kernel)
    storages = {_key(arg): arg.untyped_storage() for arg in args if isinstance(arg, Tensor)}
    copies = {key: storage.cuda() for key, storage in storages.items()}
    values, types = [], []
    for letter, arg in zip(signature_of(name), args, strict=True):
        kind = {"p": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_longlong}.get(letter)
        types.append(kind or ctypes.c_float)
        if isinstance(arg, Tensor):
            offset = arg.storage_offset() * arg.itemsize
            values.append(copies[_key(arg)].data_ptr() + offset)
        else:
            values.append(0 if arg is None else arg)
    blocks = (*grid, *[1] * (3 - len(grid)))
    stream = torch.cuda.current_stream().cuda_stream
    function = _function(name, shared_bytes)
    arguments = (tuple(values), tuple(types))
    _checked(
        driver.cuLaunchKernel(
            function, *blocks, num_threads, 1, 1, shared_bytes, stream, arguments, 0
        )
    )
    torch.cuda.synchronize()
    for key, storage in storages.items():
        storage.copy_(copies[key])


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
