"""How much text a request may hold, checked before any of it is tokenized or rendered."""

from dataclasses import dataclass
from typing import Final

from chairlift import checks
from chairlift.errors import Reason, RequestError
from chairlift.types import Chat

MAX_MESSAGES: Final = 4096
"""Of one conversation."""

_BYTES_PER_ID: Final = 8
"""A list of token ids may have one id for so many bytes of `max_bytes`."""


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Bounds of texts.

    Attributes:
        max_bytes: Of any text that is tokenized, in UTF-8.
        longest_token_bytes: The most bytes of a text that one token stands for; None where there
            is no bound.
        max_model_len: Tokens of prompt and answer that the model takes.
        max_context_len: The same for this server, whose KV cache may hold less.
    """

    max_bytes: int
    longest_token_bytes: int | None
    max_model_len: int
    max_context_len: int

    @property
    def max_ids(self) -> int:
        """The most token ids that are turned into text at once."""
        return self.max_bytes // _BYTES_PER_ID

    def check_text(self, text: object, field: str) -> int:
        """Check a text that is to be tokenized; return its length in bytes.

        Raises:
            RequestError: `PROMPT_TOO_LONG`: it has more than `max_bytes`; `BAD_PARAMETER`: it is
                no text that UTF-8 can encode.
        """
        # Of a text that is much too long not even the bytes are counted.
        is_long = isinstance(text, str) and len(text) > self.max_bytes
        num_bytes = 0 if is_long else checks.utf8_len(text, field)
        if is_long or num_bytes > self.max_bytes:
            message = f"{field}: expected at most {self.max_bytes} bytes of text, got more"
            raise RequestError(Reason.PROMPT_TOO_LONG, message, field=field)
        return num_bytes

    def check_prompt(self, text: str, field: str) -> None:
        """Check a text that is to become a whole prompt.

        Raises:
            RequestError: As `check_text` and `check_length`.
        """
        num_bytes = self.check_text(text, field)
        if self.longest_token_bytes is not None:
            self.check_length(-(-num_bytes // self.longest_token_bytes), "at least ")

    def check_chat(self, chat: Chat) -> None:
        """Check a conversation that is to be rendered.

        Raises:
            RequestError: `BAD_PARAMETER`: it has too many messages; `PROMPT_TOO_LONG`: its
                messages have more than `max_bytes` characters.
        """
        checks.at_most(chat.messages, "chat.messages", MAX_MESSAGES)
        num_characters = 0
        for i, message in enumerate(chat.messages):
            content: object = message.content
            if not isinstance(content, str):
                field = f"chat.messages[{i}].content"
                raise checks.bad(field, "text", content)
            num_characters += len(content)
        if num_characters > self.max_bytes:
            text = f"chat.messages: expected at most {self.max_bytes} bytes of text, got more"
            raise RequestError(Reason.PROMPT_TOO_LONG, text, field="chat.messages")

    def check_length(self, num_tokens: int, at_least: str = "") -> None:
        """Check the length of a prompt; `at_least` goes before a number that may be too small.

        Raises:
            RequestError: `PROMPT_TOO_LONG` or `KV_CAPACITY` in `prompt`.
        """
        for context, reason, owner in (
            (self.max_model_len, Reason.PROMPT_TOO_LONG, "the model has"),
            (self.max_context_len, Reason.KV_CAPACITY, "this server's KV cache has"),
        ):
            if num_tokens >= context:
                message = (
                    f"prompt: expected at most {context - 1} tokens, because {owner} room for"
                    f" {context} with the answer, got {at_least}{num_tokens}"
                )
                raise RequestError(reason, message, field="prompt")
