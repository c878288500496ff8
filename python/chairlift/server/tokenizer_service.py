"""`TokenizerService`: the served model's tokenizer and chat template."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from chairlift.server.convert import bad, check_model, to_chat
from chairlift.server.gate import Gate
from chairlift.server.guard import Context
from chairlift.v1 import tokenizer_pb2 as pb
from chairlift.v1 import tokenizer_pb2_grpc

if TYPE_CHECKING:
    from chairlift.engine.engine import Engine

Result = TypeVar("Result")


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """The work runs on a thread: a text may be megabytes long."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Text to token ids, as Generate does it."""
        tokenizer = self._engine(request.model).tokenizer
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True
        ids = await _on_thread(lambda: tokenizer.encode(request.text, special))
        return pb.TokenizeResponse(token_ids=ids)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        """Token ids to text."""
        engine = self._engine(request.model)
        vocab_size = engine.model_config.vocab_size
        if any(token_id >= vocab_size for token_id in request.token_ids):
            raise bad("token_ids", f"expected ids from 0 to {vocab_size - 1}, got one outside")
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        ids = list(request.token_ids)
        text = await _on_thread(lambda: engine.tokenizer.decode(ids, skip))
        return pb.DetokenizeResponse(text=text)

    async def ApplyChatTemplate(
        self, request: pb.ApplyChatTemplateRequest, context: Context
    ) -> pb.ApplyChatTemplateResponse:
        """A conversation to the prompt that Generate would use."""
        tokenizer = self._engine(request.model).tokenizer
        chat = to_chat(request.chat)
        ids = await _on_thread(lambda: tokenizer.encode_chat(chat))
        text = await _on_thread(lambda: tokenizer.render_chat(chat))
        return pb.ApplyChatTemplateResponse(token_ids=ids, text=text)

    def _engine(self, model: str) -> "Engine":
        engine = self._gate.engine().engine
        check_model(model, engine.model_name)
        return engine


async def _on_thread(work: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(work)
