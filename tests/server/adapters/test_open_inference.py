"""The Open Inference Protocol, and Triton's stream."""

import json
import struct

import grpc
import pytest
from chairlift.server.protocols.stubs import open_inference_pb2 as oip
from chairlift.server.protocols.stubs import open_inference_pb2_grpc

from tests.server.connection import start, status_of, until

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
TEXT = "one two three"


def stub(serving):
    return open_inference_pb2_grpc.GRPCInferenceServiceStub(serving.channel)


def request(text=TEXT, *, raw=False, id="", model="tiny", sampling=GREEDY, **flags):
    message = oip.ModelInferRequest(model_name=model, id=id)
    values = {"text_input": text, "sampling_parameters": json.dumps(sampling), **flags}
    for name, value in values.items():
        is_flag = isinstance(value, bool)
        tensor = message.inputs.add(name=name, datatype="BOOL" if is_flag else "BYTES", shape=[1])
        if raw:
            data = value.encode() if not is_flag else bytes([value])
            message.raw_input_contents.append(
                data if is_flag else struct.pack("<I", len(data)) + data
            )
        elif is_flag:
            tensor.contents.bool_contents.append(value)
        else:
            tensor.contents.bytes_contents.append(value.encode())
    return message


def outputs(response):
    """The values of a response by name."""
    values = {}
    for tensor, data in zip(response.outputs, response.raw_output_contents, strict=True):
        if tensor.datatype == "BYTES":
            assert struct.unpack_from("<I", data)[0] == len(data) - 4
            values[tensor.name] = data[4:].decode()
        else:
            (values[tensor.name],) = struct.unpack("<I", data)
    return values


def is_final(response):
    return response.parameters["triton_final_response"].bool_param


async def stream(serving, *messages):
    return [r async for r in stub(serving).ModelStreamInfer(iter(messages))]


async def native(server):
    fields = {"prompt": TEXT, "output": None}
    return (await server.say(start("a", **fields))).text("a")


@pytest.mark.parametrize("raw", [True, False])
async def test_an_answer_has_the_text_of_the_native_one(others, raw):
    async with others() as server:
        text = await native(server)
        flags = {"return_finish_reason": True, "return_num_output_tokens": True}
        response = await stub(server).ModelInfer(
            request(id="mine", raw=raw, exclude_input_in_output=True, **flags)
        )
        found = outputs(response)
        assert found == {"text_output": text, "finish_reason": "length", "num_output_tokens": 8}
        assert (response.id, response.model_name) == ("mine", "tiny")
        # As Triton's backend for vLLM: the prompt comes first unless it is excluded.
        whole = await stub(server).ModelInfer(request())
        assert outputs(whole)["text_output"] == TEXT + text


async def test_numbers_and_flags_may_be_texts(others):
    async with others() as server:
        given = {"temperature": "0", "max_tokens": "8", "ignore_eos": "True"}
        response = await stub(server).ModelInfer(
            request(sampling=given, exclude_input_in_output=True)
        )
        assert outputs(response)["text_output"] == await native(server)


async def test_a_stream_has_a_response_per_step_and_marks_the_last(others):
    async with others() as server:
        text = await native(server)
        responses = [r.infer_response for r in await stream(server, request(stream=True, id="s"))]
        assert "".join(outputs(r)["text_output"] for r in responses) == text
        assert len(responses) > 2
        assert [is_final(r) for r in responses] == [False] * (len(responses) - 1) + [True]
        assert {r.id for r in responses} == {"s"}


async def test_requests_of_one_stream_run_together_and_an_error_is_one_of_its_request(others):
    async with others() as server:
        text = await native(server)
        good = [request(stream=True, id=name) for name in ("a", "a", "b")]
        wrong = request(stream=True, id="w", sampling={"temperature": -1})
        responses = await stream(server, *good, wrong)
        errors = [r for r in responses if r.error_message]
        assert [r.infer_response.id for r in errors] == ["w"]
        assert errors[0].error_message.startswith("sampling_parameters.temperature")
        of_b = [r.infer_response for r in responses if r.infer_response.id == "b"]
        assert "".join(outputs(r)["text_output"] for r in of_b) == text
        assert sum(is_final(r.infer_response) for r in responses) == 4


async def test_an_empty_response_ends_an_answer_where_the_client_asks_for_it(others):
    async with others() as server:
        message = request(stream=True)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        *before, last = [r.infer_response for r in await stream(server, message)]
        assert is_final(last)
        assert not last.outputs
        assert not any(is_final(r) for r in before)


def changed(**fields):
    """A request with one thing wrong."""
    message = request()
    for name, value in fields.items():
        match name:
            case "shape":
                message.inputs[0].shape[:] = value
            case "datatype" | "name":
                setattr(message.inputs[0], name, value)
            case "raw":
                message.raw_input_contents.append(value)
            case "output":
                message.outputs.add(name=value)
            case "parameter":
                message.parameters[value].bool_param = True
            case _:
                setattr(message, name, value)
    return message


def without_inputs():
    return oip.ModelInferRequest(model_name="tiny")


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        (without_inputs(), "INVALID_ARGUMENT", "inputs"),
        (changed(shape=[2]), "INVALID_ARGUMENT", "inputs[0].shape"),
        (changed(shape=[-1]), "INVALID_ARGUMENT", "inputs[0].shape"),
        (changed(datatype="INT32"), "INVALID_ARGUMENT", "inputs[0].datatype"),
        (changed(name="image"), "INVALID_ARGUMENT", "inputs[0].name"),
        (changed(raw=b"x"), "INVALID_ARGUMENT", "raw_input_contents"),
        (changed(output="logits"), "INVALID_ARGUMENT", "outputs[0].name"),
        (changed(parameter="sequence_id"), "UNIMPLEMENTED", "parameters.sequence_id"),
        (changed(parameter="timeout"), "INVALID_ARGUMENT", "parameters.timeout"),
        (changed(model_name="other"), "NOT_FOUND", "model"),
        (changed(model_version="2"), "NOT_FOUND", "model_version"),
        (changed(id="x" * 200), "INVALID_ARGUMENT", "id"),
        (request(sampling=[1]), "INVALID_ARGUMENT", "sampling_parameters"),
        (request(sampling={"top_p": 2}), "INVALID_ARGUMENT", "sampling_parameters.top_p"),
        (request(sampling={"n": 2}), "UNIMPLEMENTED", "sampling_parameters.n"),
        (request(sampling={"best_of": 2}), "INVALID_ARGUMENT", "sampling_parameters.best_of"),
        (request(stream=True), "INVALID_ARGUMENT", "stream"),
        (request(""), "INVALID_ARGUMENT", "text_input"),
        (request("one " * 2000), "INVALID_ARGUMENT", "text_input"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(others, message, code, field):
    async with others() as server:
        status = await status_of(stub(server).ModelInfer(message))
        assert status.code.name == code
        assert status.message.startswith(field)
        await server.until_idle()


@pytest.mark.parametrize("size", [60_000, 900_000])
async def test_deeply_nested_and_long_parameters_are_refused(others, size):
    async with others() as server:
        message = request()
        message.inputs[1].contents.bytes_contents[0] = b"[" * size
        status = await status_of(stub(server).ModelInfer(message))
        assert status.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("data", [b"", b"\1\0\0", b"\xff\xff\xff\xffx", b"\2\0\0\0\xff\xfe"])
async def test_a_raw_text_that_is_none_is_refused(others, data):
    async with others() as server:
        message = request(raw=True)
        message.raw_input_contents[0] = data
        status = await status_of(stub(server).ModelInfer(message))
        assert status.code is grpc.StatusCode.INVALID_ARGUMENT
        assert status.message.startswith("inputs[0]")


async def test_breaking_a_call_cancels_its_requests(others):
    async with others() as server:
        call = stub(server).ModelStreamInfer()
        names = {"a", "b", "c"}
        for name in names:
            await call.write(request(stream=True, id=name, sampling=GREEDY | {"max_tokens": 240}))
        while names:
            names.discard((await call.read()).infer_response.id)
        call.cancel()
        await until(lambda: server.num_ended("cancelled") == 3)
        await server.until_idle()


async def test_it_says_what_it_is(others):
    async with others() as server:
        inference = stub(server)
        assert (await inference.ServerLive(oip.ServerLiveRequest())).live
        assert (await inference.ServerReady(oip.ServerReadyRequest())).ready
        assert (await inference.ModelReady(oip.ModelReadyRequest(name="tiny"))).ready
        model = await inference.ModelMetadata(oip.ModelMetadataRequest(name="tiny"))
        assert "text_input" in {tensor.name for tensor in model.inputs}
        assert "text_output" in {tensor.name for tensor in model.outputs}
        status = await status_of(inference.ModelReady(oip.ModelReadyRequest(name="other")))
        assert status.code is grpc.StatusCode.NOT_FOUND


async def test_a_client_that_takes_nothing_in_time_loses_its_call(others):
    async with others(server={"write_timeout_s": 1e-9}) as server:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stream(server, request(stream=True))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await server.until_idle()
