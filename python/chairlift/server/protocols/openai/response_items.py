"""The items of a response: reasoning, a message, function calls; each grows until the next begins.

A step gives reasoning, then text, then parts of calls; the first part of a call begins a new item.
"""

from dataclasses import dataclass, field
from typing import Literal

from chairlift.api.answer_collector import GrowingText
from chairlift.server.http.json_pieces import array, quoted, to_json
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.v1 import generation_pb2 as pb

Kind = Literal["reasoning", "message", "function_call"]

_PREFIXES: dict[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


@dataclass(slots=True)
class Item:
    """One item of the output, as far as it has come."""

    kind: Kind
    item_id: str
    position: int
    """Index of the item in the output."""
    call_position: int | None = None
    """Index of a function call among the calls."""
    call_id: str = ""
    name: str = ""
    """Name of the function that is called."""
    content: GrowingText = field(default_factory=GrowingText)
    """The text so far; that of a call is its arguments."""
    logprobs: list[bytes] = field(default_factory=list)
    """Runs of entries, encoded as they came."""

    @property
    def text(self) -> str:
        """Return the text so far."""
        return str(self.content)

    def part(self, text: bytes, logprobs: list[bytes]) -> list[bytes]:
        """Return the pieces of the content of a message or of reasoning.

        Args:
            text: Encoded.
            logprobs: Pieces of the list of its entries.
        """
        if self.kind == "reasoning":
            return [b'{"type":"reasoning_text","text":', text, b"}"]
        before = b'{"type":"output_text","text":'
        return [before, text, b',"annotations":[],"logprobs":', *logprobs, b"}"]

    def new(self) -> bytes:
        """Return the item before it has any content."""
        content = b',"arguments":""}' if self.kind == "function_call" else b',"content":[]}'
        return to_json(self._head("in_progress"))[:-1] + content

    def _head(self, status: str) -> dict[str, object]:
        head: dict[str, object] = {"id": self.item_id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**head, "call_id": self.call_id, "name": self.name}
        if self.kind == "reasoning":
            return {**head, "summary": []}
        return {**head, "role": "assistant"}

    def end(self, status: str) -> "Ended":
        """Return the item as it is at its end."""
        text = quoted(self.text)
        head = to_json(self._head(status))[:-1]
        if self.kind == "function_call":
            return Ended(self, text, [], [], [head, b',"arguments":', text, b"}"])
        logprobs = array(self.logprobs)
        part = self.part(text, logprobs)
        return Ended(self, text, logprobs, part, [head, b',"content":[', *part, b"]}"])


@dataclass(frozen=True, slots=True)
class Ended:
    """An item at its end, encoded once for all the places that have it."""

    item: Item
    text: bytes
    logprobs: list[bytes]
    """Pieces of the list of entries."""
    part: list[bytes]
    """Pieces of the content; a function call has none."""
    object: list[bytes]
    """Pieces of the item."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What an item has got."""

    item: Item
    is_new: bool
    ended: Item | None
    """The item before it, which is complete now."""
    text: str
    logprobs: bytes
    """A run of entries, with commas between them."""


class Items:
    """The output of a response."""

    def __init__(self, handle: str, texts: TokenTexts | None) -> None:
        """Start without items.

        Args:
            handle: Handle of the response; the ids of items have it.
            texts: Texts of single tokens; None leaves log probabilities out.
        """
        self._handle = handle
        self._texts = texts
        self._items: list[Item] = []

    @property
    def last(self) -> Item | None:
        """Return the item that grows."""
        return self._items[-1] if self._items else None

    def add(self, tokens: pb.Tokens) -> list[Growth]:
        """Add tokens; return what items have got, in order."""
        grown = []
        if tokens.reasoning:
            grown.append(self._grow("reasoning", tokens.reasoning))
        entries = b"" if self._texts is None else self._texts.content(tokens)
        if tokens.text or entries:
            is_text = bool(tokens.text) or self.last is None or self.last.kind == "message"
            # The tokens of reasoning and calls have no place for their log probabilities.
            if is_text:
                grown.append(self._grow("message", tokens.text, entries))
        calls = (
            self._grow("function_call", part.arguments_json, call=part)
            for part in tokens.tool_calls
        )
        return [*grown, *calls]

    def _grow(
        self,
        kind: Kind,
        text: str,
        logprobs: bytes = b"",
        call: pb.ToolCall | None = None,
    ) -> Growth:
        last = self.last
        is_new = (
            last is None
            or last.kind != kind
            or (call is not None and call.index != last.call_position)
        )
        if is_new:
            position = len(self._items)
            item_id = f"{_PREFIXES[kind]}_{self._handle}"
            item = Item(kind, item_id if kind == "message" else f"{item_id}_{position}", position)
            if call is not None:
                item.call_position, item.call_id, item.name = call.index, call.id, call.name
            self._items.append(item)
        item = self._items[-1]
        item.content.add(text)
        if logprobs:
            item.logprobs.append(logprobs)
        return Growth(item, is_new, last if is_new else None, text, logprobs)

    def finish(self) -> Growth | None:
        """End the output: one that has no item gets an empty message."""
        return None if self._items else self._grow("message", "")
