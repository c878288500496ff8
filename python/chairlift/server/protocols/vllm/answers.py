"""Events to `GenerateResponse`: a chunk for the tokens of each step, and the end of each answer."""

import json
from collections.abc import Iterable
from typing import Final

from chairlift.api import types
from chairlift.server.calls.calls import ConvertedCall
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.outbox import Outbox
from chairlift.server.convert.messages import DeliveryOptions
from chairlift.server.handoff.handoffs import Handoff
from chairlift.server.protocols.stubs import vllm_engine_pb2 as vllm
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.v1 import generation_pb2 as pb

_REASONS: Final = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TIME_LIMIT: "length",
    pb.FINISH_REASON_CANCELLED: "abort",
}


class EngineCall(ConvertedCall):
    """The call of `VllmEngine.Generate`."""

    def __init__(
        self,
        server: ServerContext,
        outbox: Outbox,
        context: ServicerContext,
        request: types.Request,
        output: DeliveryOptions,
        label: str,
        *,
        is_stream: bool,
        handoff: Handoff | None = None,
    ) -> None:
        super().__init__(server, outbox, context, request, output, label, handoff)
        self._is_stream = is_stream
        self._num_prompt_tokens = 0
        self._answers: dict[int, vllm.GenerateComplete] = {}
        """Answers that are sent whole: what they have so far is converted as it comes."""

    def convert(self, event: pb.Event) -> Iterable[object]:
        """Return the messages of an event."""
        kind = event.WhichOneof("event")
        if kind == "accepted":
            self._num_prompt_tokens = event.accepted.num_prompt_tokens
        elif kind == "tokens":
            if self._is_stream:
                yield self._chunk(event.index, event.tokens)
            else:
                self._collect(event.index, event.tokens)
        elif kind == "finished":
            yield self._complete(event.index, event.finished)

    def _chunk(self, index: int, tokens: pb.Tokens) -> vllm.GenerateResponse:
        chunk = vllm.GenerateStreamChunk(
            token_ids=tokens.token_ids,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=len(tokens.token_ids),
            output_logprobs=_logprobs(tokens),
            index=index,
        )
        return vllm.GenerateResponse(chunk=chunk)

    def _collect(self, index: int, tokens: pb.Tokens) -> None:
        answer = self._answers.setdefault(index, vllm.GenerateComplete())
        answer.output_ids.extend(tokens.token_ids)
        logprobs = _logprobs(tokens)
        if logprobs is not None:
            answer.output_logprobs.MergeFrom(logprobs)

    def _complete(self, index: int, finished: pb.Finished) -> vllm.GenerateResponse:
        complete = self._answers.pop(index, vllm.GenerateComplete())
        complete.finish_reason = _REASONS[finished.reason]
        complete.prompt_tokens = self._num_prompt_tokens
        complete.completion_tokens = finished.usage.output_tokens
        complete.cached_tokens = finished.usage.cached_tokens
        complete.index = index
        match = finished.WhichOneof("match")
        if match == "stop":
            complete.matched_stop_str = finished.stop
        elif match == "stop_token_id":
            complete.matched_token_id = finished.stop_token_id
        if self.wants_ticket and complete.finish_reason != "abort":
            complete.kv_transfer_params_json = json.dumps(self.handoff_params())
        return vllm.GenerateResponse(complete=complete)


def _logprobs(tokens: pb.Tokens) -> vllm.OutputLogProbs | None:
    if not tokens.HasField("logprobs"):
        return None
    given = tokens.logprobs
    width = given.num_candidates
    top = [
        vllm.TopLogProbs(
            values=given.candidate_logprobs[start : start + width],
            token_ids=given.candidate_ids[start : start + width],
        )
        for start in range(0, len(given.candidate_ids), width or 1)
    ]
    return vllm.OutputLogProbs(
        token_logprobs=given.logprobs,
        token_ids=tokens.token_ids,
        top_logprobs=top or [vllm.TopLogProbs() for _ in tokens.token_ids],
    )
