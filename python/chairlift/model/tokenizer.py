"""Text and conversations to token ids, and back."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tokenizers

from chairlift import _core
from chairlift.errors import ModelError, Reason, RequestError
from chairlift.model.fields import read_json
from chairlift.model.token_table import build_token_table, read_decoding
from chairlift.types import Chat


class Tokenizer:
    """The tokenizer and chat template of one model. Any thread may call any method at any time.

    Attributes:
        special_tokens: Strings by name (`bos_token`, `eos_token`, ...), as chat templates see them.
        bos_token_id: None where the model has none.
        eos_token_ids: The end token, if the tokenizer's configuration names one.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        add_bos_token: bool = False,
    ) -> None:
        """Takes over `backend`.

        Args:
            backend: What `tokenizer.json` describes.
            special_tokens: By name.
            chat_templates: By name; `default` is the one, `tool_use` goes before it with tools.
            add_bos_token: Encoding begins with the `bos_token` where `backend` adds no special
                tokens of its own.

        Raises:
            ModelError: The decoder is of an unknown kind.
        """
        self.special_tokens = dict(special_tokens or {})
        self._chat_templates = dict(chat_templates or {})
        self._backend = backend
        self._decoding = read_decoding(backend)
        # A file may hold the limits of a training set; what to cut is the request's to say.
        backend.no_truncation()
        backend.no_padding()
        # What the configuration names is special even where tokenizer.json forgets it.
        known = {t for t in self.special_tokens.values() if backend.token_to_id(t) is not None}
        backend.add_special_tokens(sorted(known - _special_strings(backend)))
        self.bos_token_id = self._special_id("bos_token")
        eos_token_id = self._special_id("eos_token")
        self.eos_token_ids = () if eos_token_id is None else (eos_token_id,)
        self._prefix: list[int] = []
        if (
            add_bos_token
            and self.bos_token_id is not None
            and not backend.num_special_tokens_to_add(False)
        ):
            self._prefix = [self.bos_token_id]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads `tokenizer.json`, `tokenizer_config.json` and the chat templates of a model folder.

        Raises:
            ModelError: A file is missing, unreadable or of an unknown kind.
        """
        path = folder / "tokenizer.json"
        try:
            data = path.read_bytes()
        except OSError as error:
            message = f"{path}: {(error.strerror or 'cannot be read').lower()}"
            raise ModelError(message) from error
        try:
            backend = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:
            reason = " ".join(str(error).split())
            message = f"{path}: not a tokenizer: {reason}"
            raise ModelError(message) from error
        config_path = folder / "tokenizer_config.json"
        config = read_json(config_path) if config_path.exists() else {}
        special_tokens = _read_special_tokens(folder, config)
        chat_templates = _read_chat_templates(folder, config)
        try:
            return cls(
                backend,
                special_tokens=special_tokens,
                chat_templates=chat_templates,
                add_bos_token=config.get("add_bos_token") is True,
            )
        except ModelError as error:
            message = f"{path}: {error}"
            raise ModelError(message) from error

    @cached_property
    def vocab_size(self) -> int:
        """The least number that is above every id."""
        return max(self._backend.get_vocab().values(), default=-1) + 1

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations are understood."""
        return "default" in self._chat_templates

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Gives the token ids of a text.

        Raises:
            RequestError: `BAD_PARAMETER` in `prompt`: the text holds a lone surrogate.
        """
        ids = self._encode(text, add_special_tokens, field="prompt")
        return [*self._prefix, *ids] if add_special_tokens else ids

    def encode_chat(self, chat: Chat) -> list[int]:
        """Gives the token ids of a conversation; special tokens are those that the template writes.

        Raises:
            RequestError: `BAD_PARAMETER` in `chat`, as `render_chat`.
        """
        return self._encode(self.render_chat(chat), False, field="chat")

    def render_chat(self, chat: Chat) -> str:
        """Gives the text of a conversation.

        Raises:
            RequestError: `BAD_PARAMETER` in `chat`: the model has no chat template, or it refuses
                the conversation.
        """
        # Jinja is loaded with the first conversation: many servers only see text and token ids.
        from chairlift.model import chat_template

        templates = self._chat_templates
        template = templates.get("default")
        if chat.template_arguments.get("tools"):
            template = templates.get("tool_use", template)
        if template is None:
            message = "the model has no chat template: send text or token ids"
            raise RequestError(Reason.BAD_PARAMETER, message, field="chat")
        messages = [
            {"role": message.role, "content": message.content}
            | ({"name": message.name} if message.name else {})
            for message in chat.messages
        ]
        return chat_template.render(
            template,
            messages,
            add_generation_prompt=chat.add_generation_prompt,
            variables={**self.special_tokens, **chat.template_arguments},
        )

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Gives the text of token ids; ids that the tokenizer does not know contribute nothing."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def num_tokens(self, text: str, add_special_tokens: bool = True) -> int:
        """Counts what `encode` gives."""
        return len(self.encode(text, add_special_tokens))

    def token_table(self, logits_width: int) -> _core.TokenTable:
        """Builds the table that the scheduler decodes with, for every id that the model can draw.

        Its text equals that of `decode`, token by token.
        """
        return build_token_table(self._backend, self._decoding, logits_width)

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)

    def _encode(self, text: str, add_special_tokens: bool, *, field: str) -> list[int]:
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (TypeError, UnicodeEncodeError):
            message = "text is not valid Unicode"
            raise RequestError(Reason.BAD_PARAMETER, message, field=field) from None


def _special_strings(backend: tokenizers.Tokenizer) -> set[str]:
    added = backend.get_added_tokens_decoder().values()
    return {token.content for token in added if token.special}


def _read_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Collects every `*_token`; files of older models keep them in `special_tokens_map.json`."""
    path = folder / "special_tokens_map.json"
    older = read_json(path) if path.exists() else {}
    tokens = {}
    for name, value in {**older, **config}.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str) and content:
            tokens[name] = content
    return tokens


def _read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Reads the templates by name; files go before what `tokenizer_config.json` holds."""
    files = {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (path := folder / "chat_template.jinja").exists():
        files["default"] = path
    if files:
        return {name: _read_text(path) for name, path in files.items()}
    match config.get("chat_template"):
        case None:
            return {}
        case str(template):
            return {"default": template}
        case list(entries) if all(_is_named_template(entry) for entry in entries):
            return {entry["name"]: entry["template"] for entry in entries}
    path = folder / "tokenizer_config.json"
    message = f"{path}: chat_template: expected a string or a list of named templates"
    raise ModelError(message)


def _is_named_template(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: not a chat template: {error}"
        raise ModelError(message) from error
