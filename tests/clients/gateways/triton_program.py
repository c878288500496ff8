"""Run with Triton's own client: ADDRESS."""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL, PROMPT = "demo", "Once upon a time"
GREEDY = {"temperature": "0", "max_tokens": "16", "ignore_eos": "true"}


def inputs(text=PROMPT, *, stream, sampling=GREEDY):
    tensors = []
    for name, value in {
        "text_input": text,
        "sampling_parameters": json.dumps(sampling),
    }.items():
        tensor = triton.InferInput(name, [1], "BYTES")
        tensor.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
        tensors.append(tensor)
    for name, value in {"stream": stream, "exclude_input_in_output": True}.items():
        tensor = triton.InferInput(name, [1], "BOOL")
        tensor.set_data_from_numpy(np.array([value], dtype=bool))
        tensors.append(tensor)
    return tensors


def text_of(result):
    return result.as_numpy("text_output")[0].decode()


def failure(client, sampling):
    """The status of a request that is refused."""
    try:
        client.infer(MODEL, inputs(stream=False, sampling=sampling))
    except InferenceServerException as error:
        return error.status()
    return "OK"


def main():
    client = triton.InferenceServerClient(sys.argv[1])
    assert all((client.is_server_live(), client.is_server_ready(), client.is_model_ready(MODEL)))
    assert {t.name for t in client.get_model_metadata(MODEL).outputs} >= {"text_output"}
    assert client.get_server_metadata().name == "chairlift"
    whole = text_of(client.infer(MODEL, inputs(stream=False)))
    assert whole

    results = queue.Queue()
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    names = [str(number) for number in range(8)]
    for name in names:
        client.async_stream_infer(
            MODEL, inputs(stream=True), request_id=name, enable_empty_final_response=True
        )
    texts, ended = dict.fromkeys(names, ""), set()
    while len(ended) < len(names):
        result, error = results.get(timeout=60)
        assert error is None, error
        response = result.get_response()
        if response.outputs:
            texts[response.id] += text_of(result)
        if response.parameters["triton_final_response"].bool_param:
            ended.add(response.id)
    assert set(texts.values()) == {whole}, (texts, whole)
    client.async_stream_infer(MODEL, inputs(stream=True, sampling={"top_p": 7}))
    _, error = results.get(timeout=60)
    assert "top_p" in str(error), error
    client.stop_stream()

    assert "INVALID_ARGUMENT" in failure(client, {"temperature": -1})
    print("tritonclient: passed")


if __name__ == "__main__":
    main()
