"""Kernels as operations of PyTorch."""

import ctypes

import torch
from chairlift.kernels.cuda.operation import operation


@operation("test_add_one", "out")
def add_one(out: torch.Tensor, x: torch.Tensor) -> None:
    """As a kernel does, it writes where PyTorch does not see it."""
    numbers = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    results = (ctypes.c_float * out.numel()).from_address(out.data_ptr())
    for place, number in enumerate(numbers):
        results[place] = number + 1


def test_an_operation_is_called_directly_and_by_its_name() -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    add_one(out, x)
    assert out.tolist() == [1, 2, 3, 4]
    torch.ops.chairlift.test_add_one(x, out)
    assert x.tolist() == [2, 3, 4, 5]


def test_traced_code_calls_the_registered_operation() -> None:
    names = []

    def backend(graph, _inputs):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def traced(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_one(out, x)
        return out * 2

    assert traced(torch.arange(3.0)).tolist() == [2, 4, 6]
    assert any("chairlift.test_add_one" in name for name in names)
