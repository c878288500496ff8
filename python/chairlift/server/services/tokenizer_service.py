"""`TokenizerService`: the served model's tokenizer and chat template.

The work runs in the queue of long prompts, counts in the quotas of its tenant, and has the same
bounds (`engine/prepare/text_queue.py`).
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from chairlift.api.checks import check_count
from chairlift.engine.prepare.text_queue import caller
from chairlift.server.calls.context import ServerContext
from chairlift.server.convert.chat import to_chat
from chairlift.server.convert.fields import bad
from chairlift.server.convert.messages import check_model
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.v1 import tokenizer_pb2 as pb
from chairlift.v1 import tokenizer_pb2_grpc

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

Result = TypeVar("Result")


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Responses are built on a thread, too: a text may be a megabyte long."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: ServicerContext
    ) -> pb.TokenizeResponse:
        """Convert a text to token ids, as Generate does."""
        engine = self._engine(request.model)
        text, tokenizer = request.text, engine.engine.tokenizer
        size = engine.engine.text_limits.check_text(text, "text")
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True

        def work() -> pb.TokenizeResponse:
            return pb.TokenizeResponse(token_ids=tokenizer.encode(text, special))

        return await self._run(engine, work, size, context)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: ServicerContext
    ) -> pb.DetokenizeResponse:
        """Convert token ids to text."""
        engine = self._engine(request.model)
        check_count(request.token_ids, "token_ids", engine.engine.text_limits.max_ids)
        vocab_size = engine.engine.model_config.spec.vocab_size
        tokenizer, ids = engine.engine.tokenizer, list(request.token_ids)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True

        def work() -> pb.DetokenizeResponse:
            if max(ids, default=0) >= vocab_size:
                raise bad("token_ids", f"expected ids from 0 to {vocab_size - 1}, got one outside")
            return pb.DetokenizeResponse(text=tokenizer.decode(ids, skip))

        return await self._run(engine, work, sys.getsizeof(ids), context)

    async def ApplyChatTemplate(
        self, request: pb.ApplyChatTemplateRequest, context: ServicerContext
    ) -> pb.ApplyChatTemplateResponse:
        """Render a conversation to the prompt that Generate would use."""
        engine = self._engine(request.model)
        tokenizer, limits = engine.engine.tokenizer, engine.engine.text_limits
        chat = to_chat(request.chat)

        def work() -> pb.ApplyChatTemplateResponse:
            limits.check_chat(chat)
            text = tokenizer.render_chat(chat, limits.max_bytes)
            limits.check_text(text, "chat")
            ids = tokenizer.encode(text, add_special_tokens=False)
            return pb.ApplyChatTemplateResponse(token_ids=ids, text=text)

        return await self._run(engine, work, request.ByteSize(), context)

    def _engine(self, model: str) -> "AsyncEngine":
        engine = self._server.gate.engine()
        check_model(model, self._server.model_names)
        return engine

    async def _run(
        self, engine: "AsyncEngine", work: Callable[[], Result], size: int, context: ServicerContext
    ) -> Result:
        tenant = self._server.authenticator.tenant(context)
        lease = self._server.quotas.acquire(tenant, context.peer())
        try:
            within_s = context.time_remaining()
            return await engine.texts.run(
                work, tenant=caller(tenant, context.peer()), size=size, within_s=within_s
            )
        finally:
            lease.release()
