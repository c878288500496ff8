"""An answer as a client collects it."""

from dataclasses import dataclass, field, replace

from chairlift.types import ToolCall
from chairlift.v1 import generation_pb2 as pb


@dataclass(slots=True)
class Answer:
    """One answer of a request, as far as it has come."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """Empty unless the request asks for them."""
    num_tokens: int = 0
    reasoning: str = ""
    """What the model thought before it answered, if it marks it."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """Functions that it calls; the arguments are text, which grows while they come."""
    finished: pb.Finished | None = None
    """Set at its end: reason, usage and, if the request asks for it, the timeline."""

    def add(self, tokens: pb.Tokens) -> None:
        """Append new output."""
        self.text += tokens.text
        self.token_ids += tokens.token_ids
        self.num_tokens += tokens.num_tokens
        self.reasoning += tokens.reasoning
        for part in tokens.tool_calls:
            if part.name or not self.tool_calls:
                self.tool_calls.append(ToolCall(part.id, part.name, part.arguments_json))
            else:
                last = self.tool_calls[-1]
                arguments = f"{last.arguments}{part.arguments_json}"
                self.tool_calls[-1] = replace(last, arguments=arguments)
