"""`ModelInfer`, and the stream of Triton: requests with responses of their own."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.api.answer_collector import GrowingText
from chairlift.api.errors import RequestError
from chairlift.server.calls.calls import ConvertedCall, StreamCall
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.outbox import Outbox
from chairlift.server.limits.receiving import Messages
from chairlift.server.protocols.oip.convert import FINAL, MAX_ID_BYTES, NAMES, Job, to_job
from chairlift.server.protocols.stubs import open_inference_pb2 as oip
from chairlift.server.rpc.status import from_error
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.v1 import generation_pb2 as pb


@dataclass(slots=True)
class _Answer:
    """The answer to a job: text that waits for its response."""

    job: Job
    text: GrowingText
    num_prompt_tokens: int = 0

    def responses(self, event: pb.Event) -> Iterable[oip.ModelInferResponse]:
        """Return the responses that an event makes possible."""
        kind = event.WhichOneof("event")
        if kind == "accepted":
            self.num_prompt_tokens = event.accepted.num_prompt_tokens
        elif kind == "tokens":
            self.text.add(event.tokens.text)
        elif kind == "finished":
            yield from self.job.last(str(self.text), self.num_prompt_tokens, event.finished)

    def flush(self) -> Iterable[oip.ModelInferResponse]:
        """Return the response to the text so far, if one is sent now."""
        if self.job.is_stream and (text := self.text.take()):
            yield self.job.with_text(text)


def _new_answer(job: Job) -> _Answer:
    answer = _Answer(job, GrowingText())
    answer.text.add(job.before)
    return answer


class InferCall(ConvertedCall):
    """The call of `ModelInfer`: one response."""

    def __init__(
        self, server: ServerContext, outbox: Outbox, context: ServicerContext, job: Job
    ) -> None:
        super().__init__(server, outbox, context, job.request, job.output, "")
        self._answer = _new_answer(job)
        self.response = oip.ModelInferResponse()

    def convert(self, event: pb.Event) -> Iterable[object]:
        """Keep the response, which the method returns."""
        for response in self._answer.responses(event):
            self.response = response
        return ()


class StreamInferCall(StreamCall):
    """The call of `ModelStreamInfer`; ids are the client's, and need not differ."""

    def __init__(
        self, server: ServerContext, outbox: Outbox, messages: Messages, context: ServicerContext
    ) -> None:
        super().__init__(server, outbox, messages, context)
        self._tenant = server.authenticator.tenant(context)
        self._answers: dict[str, _Answer] = {}
        self._names: dict[str, oip.ModelInferResponse] = {}
        """The beginning of every response to a request, by its label."""
        self._num_requests = 0

    async def execute(self, message: oip.ModelInferRequest) -> None:
        """Submit a request.

        Raises:
            RequestError: It is refused.
        """
        arrived_at = time.monotonic()
        self._num_requests += 1
        label = str(self._num_requests)
        self._names[label] = oip.ModelInferResponse(
            id=message.id[:MAX_ID_BYTES], model_name=self._server.model_names[0]
        )
        engine = self._server.gate.admit()
        job = to_job(
            message,
            served=self._server.model_names,
            tenant=self._tenant,
            limits=engine.engine.text_limits,
        )
        self._answers[label] = _new_answer(job)
        await self._requests.submit(job.request, job.output, label, arrived_at=arrived_at)

    def refuse(self, message: oip.ModelInferRequest, error: RequestError) -> None:
        """Add the refusal of the request that came last."""
        self._requests.refuse(str(self._num_requests), error)

    def encode(self, message: bytes) -> Iterable[object]:
        """Yield the responses: at most one for the tokens of an answer, then its end."""
        touched: dict[str, _Answer] = {}
        for event in pb.GenerateResponse.FromString(message).events:
            label, kind = event.request_id, event.WhichOneof("event")
            if kind in ("rejected", "failed"):
                yield self._failure(label, getattr(event, kind).error)
            else:
                answer = touched[label] = self._answers[label]
                for response in answer.responses(event):
                    yield oip.ModelStreamInferResponse(infer_response=response)
            if event.last:
                for by_label in (touched, self._answers, self._names):
                    by_label.pop(label, None)
        for answer in touched.values():
            for response in answer.flush():
                yield oip.ModelStreamInferResponse(infer_response=response)

    def _failure(self, label: str, error: pb.Error) -> oip.ModelStreamInferResponse:
        message = NAMES.translate(from_error(error)).message
        response = self._names[label]
        response.parameters[FINAL].bool_param = True
        return oip.ModelStreamInferResponse(error_message=message, infer_response=response)
