"""A kernel as an operation of PyTorch, called without PyTorch's dispatcher outside tracing."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

Operation = Callable[..., None]
"""A function of tensors and numbers, given by place: callers unpack groups of them."""
_DEVICES: Final = ("cuda", "cpu")
"""Tensors of a CPU go to the emulation, where one is installed."""


def operation(name: str, *mutated: str) -> Callable[[Operation], Operation]:
    """Register a function as `torch.ops.chairlift.NAME`; what is returned calls it directly.

    A step with a chunk of a prompt launches each kernel by itself, and the dispatcher takes longer
    than all else that the host does for a launch. Code that is traced calls the registered
    operation, whose fake implementation does nothing: results are written to arguments.

    Its first argument is a tensor, and given by place.

    Args:
        name: Name of the operation.
        *mutated: Arguments that it writes.
    """

    def decorate(function: Operation) -> Operation:
        registered = torch.library.custom_op(
            f"chairlift::{name}", function, mutates_args=mutated, device_types=_DEVICES
        )
        registered.register_fake(lambda *_args, **_named: None)

        @wraps(function)
        def call(first: Tensor, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            # A tensor without data, and each other one that PyTorch follows, has a type of its own.
            if type(first) is Tensor and not torch.compiler.is_compiling():
                function(first, *args, **kwargs)
            else:
                registered(first, *args, **kwargs)

        return call

    return decorate
