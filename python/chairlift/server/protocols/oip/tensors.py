"""Tensors of one element: texts and flags of requests, texts and token counts of responses."""

import struct
from typing import Any, Final

from chairlift.server.convert.fields import bad, unsupported
from chairlift.server.protocols.stubs import open_inference_pb2 as oip

INPUTS: Final = {
    "text_input": "BYTES",
    "stream": "BOOL",
    "sampling_parameters": "BYTES",
    "exclude_input_in_output": "BOOL",
    "return_finish_reason": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
}
"""Names and types; all but the first are optional."""

OUTPUTS: Final = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}

_SHAPES: Final = ((1,), (1, 1))
_MAX_DIMENSIONS: Final = 2


def read_inputs(message: oip.ModelInferRequest) -> dict[str, Any]:
    """Return the values of the inputs by name.

    Raises:
        RequestError: An input is unknown, comes twice, or is not one element of its type.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        expected = f"expected one for each of the {len(message.inputs)} inputs, got {len(raw)}"
        raise bad("raw_input_contents", expected)
    values: dict[str, Any] = {}
    for number, tensor in enumerate(message.inputs):
        path = f"inputs[{number}]"
        kind = INPUTS.get(tensor.name)
        if kind is None:
            raise bad(f"{path}.name", f"expected one of {', '.join(INPUTS)}")
        if tensor.name in values:
            raise bad(f"{path}.name", f"{tensor.name} comes twice")
        if tensor.datatype != kind:
            raise bad(f"{path}.datatype", f"expected {kind} for {tensor.name}")
        if len(tensor.shape) > _MAX_DIMENSIONS or tuple(tensor.shape) not in _SHAPES:
            raise bad(f"{path}.shape", "expected one element, [1] or [1, 1]")
        if tensor.parameters:
            raise unsupported(f"{path}.parameters")
        if raw and tensor.HasField("contents"):
            raise bad(f"{path}.contents", "expected none beside raw_input_contents")
        element = _from_raw(raw[number], kind, path) if raw else _from_contents(tensor, kind, path)
        values[tensor.name] = _value(element, path)
    if "text_input" not in values:
        raise bad("inputs", "expected text_input, got none")
    return values


def _value(element: bytes | bool, path: str) -> str | bool:
    if isinstance(element, bool):
        return element
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise bad(path, "expected text in UTF-8") from None


def _from_raw(data: bytes, kind: str, path: str) -> bytes | bool:
    """Read an element as the protocol packs it: texts have their length before them."""
    if kind == "BOOL":
        if data not in (b"\0", b"\1"):
            raise bad(path, f"expected one byte, 0 or 1, got {len(data)} bytes")
        return data == b"\1"
    if len(data) < 4 or struct.unpack_from("<I", data)[0] != len(data) - 4:
        raise bad(path, "expected one text with its length before it, in 4 bytes")
    return data[4:]


def _from_contents(tensor: oip.ModelInferRequest.InferInputTensor, kind: str, path: str) -> Any:
    name = "bool_contents" if kind == "BOOL" else "bytes_contents"
    elements = getattr(tensor.contents, name)
    if len(elements) != 1:
        raise bad(f"{path}.contents.{name}", f"expected one element, got {len(elements)}")
    return elements[0]


def add_output(response: oip.ModelInferResponse, name: str, value: str | int) -> None:
    """Add an output of one element, in the raw form, which every client reads."""
    kind = OUTPUTS[name]
    response.outputs.add(name=name, datatype=kind, shape=[1])
    if isinstance(value, str):
        data = value.encode()
        response.raw_output_contents.append(struct.pack("<I", len(data)) + data)
    else:
        response.raw_output_contents.append(struct.pack("<I", value))
