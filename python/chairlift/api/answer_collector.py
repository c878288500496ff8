"""The output of one answer, put together piece by piece: in the engine, servers and clients."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.api.types import ToolCall


class GrowingText:
    """A text that grows: its pieces are joined when it is read, and not each time one comes."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        """Start without text."""
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Append a piece."""
        if piece:
            self._pieces.append(piece)

    def take(self) -> str:
        """Return the text so far, and begin again without text."""
        text = str(self)
        self._pieces = []
        return text

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def __repr__(self) -> str:
        return repr(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GrowingText) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]  # it changes


@dataclass(slots=True)
class CollectedCall:
    """A function call as far as it has come."""

    id: str = ""
    name: str = ""
    arguments: GrowingText = field(default_factory=GrowingText)


@dataclass(slots=True)
class AnswerCollector:
    """One answer as far as it has come."""

    text: GrowingText = field(default_factory=GrowingText)
    reasoning: GrowingText = field(default_factory=GrowingText)
    token_ids: list[int] = field(default_factory=list)
    calls: dict[int, CollectedCall] = field(default_factory=dict)
    """Function calls by their position in the answer."""

    def add(self, text: str, reasoning: str = "", token_ids: Sequence[int] = ()) -> None:
        """Append new output."""
        self.text.add(text)
        self.reasoning.add(reasoning)
        self.token_ids.extend(token_ids)

    def add_call(self, position: int, call_id: str, name: str, arguments: str) -> None:
        """Append a part of a function call.

        Args:
            position: Number of the call within the answer.
            call_id: Set in the first part.
            name: Set in the first part.
            arguments: The next piece of the JSON text.
        """
        call = self.calls.setdefault(position, CollectedCall())
        call.id += call_id
        call.name += name
        call.arguments.add(arguments)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Return the function calls; the arguments are text, which grows while they come."""
        calls = (self.calls[position] for position in sorted(self.calls))
        return [ToolCall(call.id, call.name, str(call.arguments)) for call in calls]
