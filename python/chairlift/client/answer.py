"""An answer as a client collects it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from chairlift.api.types import ToolCall
from chairlift.v1 import generation_pb2 as pb


class _Text:
    """A text that grows: its pieces are joined when it is read, and not each time one comes."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Iterable[str] = ()) -> None:
        self._pieces = list(pieces)

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def __repr__(self) -> str:
        return repr(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]  # it changes


@dataclass(slots=True)
class _Call:
    """A function call whose parts come one by one."""

    id: str = ""
    name: str = ""
    arguments: _Text = field(default_factory=_Text)


@dataclass(slots=True)
class Answer:
    """One answer of a request, as far as it has come."""

    index: int
    _text: _Text = field(default_factory=_Text, init=False)
    token_ids: list[int] = field(default_factory=list)
    """Empty unless the request asks for them."""
    num_tokens: int = 0
    _reasoning: _Text = field(default_factory=_Text, init=False)
    _calls: dict[int, _Call] = field(default_factory=dict, init=False)
    finished: pb.Finished | None = None
    """Set at its end: reason, usage and, if the request asks for it, the timeline."""

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self._text)

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered, if it marks it."""
        return str(self._reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Functions that it calls; the arguments are text, which grows while they come."""
        calls = (self._calls[position] for position in sorted(self._calls))
        return [ToolCall(call.id, call.name, str(call.arguments)) for call in calls]

    def add(self, tokens: pb.Tokens) -> None:
        """Append new output."""
        self._text.add(tokens.text)
        self.token_ids += tokens.token_ids
        self.num_tokens += tokens.num_tokens
        self._reasoning.add(tokens.reasoning)
        for part in tokens.tool_calls:
            call = self._calls.setdefault(part.index, _Call())
            call.id += part.id
            call.name += part.name
            call.arguments.add(part.arguments_json)
