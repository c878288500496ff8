"""An answer as a client collects it."""

from dataclasses import dataclass, field

from chairlift.api.answer_collector import AnswerCollector
from chairlift.api.types import ToolCall
from chairlift.v1 import generation_pb2 as pb


@dataclass(slots=True)
class Answer:
    """One answer of a request, as far as it has come."""

    index: int
    _collected: AnswerCollector = field(default_factory=AnswerCollector, init=False)
    num_tokens: int = field(default=0, init=False)
    finished: pb.Finished | None = field(default=None, init=False)
    """Set at its end: reason, usage and, if the request asks for it, the timeline."""

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self._collected.text)

    @property
    def token_ids(self) -> list[int]:
        """The tokens so far; empty unless the request asks for them."""
        return self._collected.token_ids

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered, if it marks it."""
        return str(self._collected.reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Functions that it calls; the arguments are text, which grows while they come."""
        return self._collected.tool_calls

    def add(self, tokens: pb.Tokens) -> None:
        """Append new output."""
        self._collected.add(tokens.text, tokens.reasoning, tokens.token_ids)
        for part in tokens.tool_calls:
            self._collected.add_call(part.index, part.id, part.name, part.arguments_json)
        self.num_tokens += tokens.num_tokens
