"""`ModelInferRequest` to `chairlift.api.types`, and its events to `ModelInferResponse`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError
from chairlift.engine.prepare.text_queue import TextLimits
from chairlift.server.convert.fields import bad, unsupported
from chairlift.server.convert.messages import DeliveryOptions, check_model
from chairlift.server.protocols.names import Names
from chairlift.server.protocols.oip.tensors import OUTPUTS, add_output, read_inputs
from chairlift.server.protocols.openai import parts, rules
from chairlift.server.protocols.openai.fields import Fields
from chairlift.server.protocols.stubs import open_inference_pb2 as oip
from chairlift.v1 import generation_pb2 as pb

VERSION: Final = "1"
"""The only version of the model."""

MAX_ID_BYTES: Final = 128
_MAX_PARAMETERS: Final = 65_536
_MAX_OUTPUTS: Final = 64
"""Each may be named again; there are few of them."""

NAMES: Final = Names(
    {
        **{path: f"sampling_parameters.{name}" for path, name in parts.NAMES.items()},
        "prompt": "text_input",
        "schedule.queue_timeout": "parameters.timeout",
    }
)

FINAL: Final = "triton_final_response"
"""Parameter of every response."""
_WITH_EMPTY: Final = "triton_enable_empty_final_response"

_REASONS: Final = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TIME_LIMIT: "length",
    pb.FINISH_REASON_CANCELLED: "abort",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A request, and the form of its answer."""

    request: types.Request
    output: DeliveryOptions
    id: str
    model: str
    before: str
    """What precedes the text of the answer: the prompt, where it is not excluded."""
    outputs: frozenset[str]
    """Those that come with the last response, and the text."""
    empty_final: bool
    """Whether a response without tensors ends the answer."""

    @property
    def is_stream(self) -> bool:
        """Whether each step has a response."""
        return self.output.interval > 0

    def response(self, *, is_final: bool) -> oip.ModelInferResponse:
        """Return a response without tensors."""
        response = oip.ModelInferResponse(model_name=self.model, model_version=VERSION, id=self.id)
        response.parameters[FINAL].bool_param = is_final
        return response

    def with_text(self, text: str) -> oip.ModelInferResponse:
        """Return a response that is not the last."""
        response = self.response(is_final=False)
        if "text_output" in self.outputs:
            add_output(response, "text_output", text)
        return response

    def last(
        self, text: str, num_prompt_tokens: int, finished: pb.Finished
    ) -> Iterator[oip.ModelInferResponse]:
        """Yield the last responses."""
        response = self.response(is_final=not self.empty_final)
        values: dict[str, str | int] = {
            "text_output": text,
            "finish_reason": _REASONS[finished.reason],
            "num_input_tokens": num_prompt_tokens,
            "num_output_tokens": finished.usage.output_tokens,
        }
        for name, value in values.items():
            if name in self.outputs:
                add_output(response, name, value)
        yield response
        if self.empty_final:
            yield self.response(is_final=True)


def to_job(
    message: oip.ModelInferRequest, *, served: Sequence[str], tenant: str, limits: TextLimits
) -> Job:
    """Convert a request.

    Args:
        message: The message.
        served: Names of the served model.
        tenant: Owner of the request.
        limits: A text that is too long is refused before it is converted.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    check_version(message.model_name, message.model_version, served)
    if len(message.id) > MAX_ID_BYTES:
        raise bad("id", f"expected at most {MAX_ID_BYTES} characters")
    values = read_inputs(message)
    text = values["text_input"]
    limits.check_text(text, "text_input")
    stream = bool(values.get("stream", False))
    excludes = values.get("exclude_input_in_output", stream)
    if stream and not excludes:
        raise bad("exclude_input_in_output", "expected true with stream")
    empty_final, schedule = _parameters(message)
    sampling, stopping, skips = _sampling(values.get("sampling_parameters", ""))
    request = types.Request(
        prompt=text,
        sampling=sampling,
        stopping=stopping,
        output=types.Output(skip_special_tokens=skips),
        schedule=schedule,
        tenant=tenant,
    )
    return Job(
        request=request,
        output=parts.output(stream=stream, logprobs=False),
        id=message.id,
        model=message.model_name or served[0],
        before="" if stream or excludes else text,
        outputs=_outputs(message, values),
        empty_final=empty_final,
    )


def check_version(name: str, version: str, served: Sequence[str]) -> None:
    """Check a model's name and version; empty ones are those that are served.

    Raises:
        RequestError: It is another model, or another version.
    """
    check_model(name, served)
    if version not in ("", VERSION):
        message = f"model_version: this server has version {VERSION} alone"
        raise RequestError(Reason.UNKNOWN_MODEL, message, field="model_version")


def _parameters(message: oip.ModelInferRequest) -> tuple[bool, types.Schedule]:
    """Take the parameters: whether an empty response ends the answer, and the time limits."""
    empty_final, timeout_s = False, None
    for name, value in message.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if name == _WITH_EMPTY and kind == "bool_param":
            empty_final = value.bool_param
        elif name == "timeout" and kind in ("int64_param", "uint64_param"):
            # In microseconds: how long the request may wait before it starts.
            micros = getattr(value, kind)
            if micros < 0:
                raise bad("parameters.timeout", f"expected microseconds, got {micros}")
            timeout_s = micros * 1e-6 or None
        elif name in (_WITH_EMPTY, "timeout"):
            raise bad(f"parameters.{name}", f"expected another type, got {kind}")
        else:
            raise unsupported(f"parameters.{name[:64]}")
    return empty_final, types.Schedule(queue_timeout_s=timeout_s)


def _outputs(message: oip.ModelInferRequest, values: dict[str, Any]) -> frozenset[str]:
    """Return the outputs that are asked for: by name, or else the text and what flags name."""
    flags = {name.removeprefix("return_") for name, value in values.items() if value is True}
    if not message.outputs:
        return frozenset({"text_output"} | flags & OUTPUTS.keys())
    if len(message.outputs) > _MAX_OUTPUTS:
        raise bad("outputs", f"expected at most {_MAX_OUTPUTS}, got {len(message.outputs)}")
    for number, output in enumerate(message.outputs):
        if output.name not in OUTPUTS:
            raise bad(f"outputs[{number}].name", f"expected one of {', '.join(OUTPUTS)}")
        if output.parameters:
            raise unsupported(f"outputs[{number}].parameters")
    return frozenset(output.name for output in message.outputs) | flags & OUTPUTS.keys()


def _sampling(text: str) -> tuple[types.Sampling, types.Stopping, bool]:
    """Read the JSON object of the sampling parameters, which have vLLM's names."""
    # It is parsed on the event loop, in less than a millisecond.
    if len(text) > _MAX_PARAMETERS:
        expected = f"expected at most {_MAX_PARAMETERS} characters, got {len(text)}"
        raise bad("sampling_parameters", expected)
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise bad("sampling_parameters", "expected a JSON object") from None
    if not isinstance(value, dict):
        raise bad("sampling_parameters", "expected a JSON object")
    # Clients of Triton write numbers and flags as texts.
    typed = {name: _typed(name, given) for name, given in value.items()}
    fields = Fields(typed, "sampling_parameters")
    sampling = parts.sampling(fields)
    stopping = parts.stopping(fields, fields.take("max_tokens"))
    skip_special = fields.flag("skip_special_tokens", default=True)
    fields.refuse_unless_neutral(rules.NEUTRAL)
    fields.end()
    if parts.num_answers(sampling) != 1:
        raise unsupported("sampling_parameters.n")
    return sampling, stopping, skip_special


def _typed(name: str, value: Any) -> Any:
    if name in ("stop", "bad_words") or not isinstance(value, str):
        return value
    try:
        return json.loads(value.lower())
    except (ValueError, RecursionError):
        return value
