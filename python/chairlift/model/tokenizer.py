"""Text and conversations to token ids, and back."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers import processors

from chairlift import _core
from chairlift.errors import ModelError, Reason, RequestError
from chairlift.model.chat_values import (
    check_template,
    has_malformed_calls,
    template_has_tools,
    template_messages,
    template_tools,
    wrap_malformed_calls,
)
from chairlift.model.fields import MOST_JSON_BYTES, one_line, optional_json, read_file
from chairlift.model.folder import is_gguf
from chairlift.model.gguf.reader import GgufHeader
from chairlift.model.gguf.tokenizer import read_tokenizer
from chairlift.model.template_process import TemplateProcess
from chairlift.model.text_bound import longest_token_bytes
from chairlift.model.token_table import NO_DECODING, build_token_table, read_decoding
from chairlift.types import Chat

# One text at a time is encoded on the thread that asks for it: a pool of threads inside
# `tokenizers` would gain nothing, and does not survive a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_RESERVED = frozenset(
    (
        "messages",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    )
)
"""Variables of templates; the names of the model's special tokens are reserved too."""

_MOST_BYTES = 256 << 20
"""Of a tokenizer.json; those of 250,000 tokens take 35 MB."""

THINK_MARK = "</think>"
"""Ends the reasoning of an answer; a template that names it may leave out that of earlier ones."""


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
        generates: bool = True,
    ) -> None:
        """Take over `backend`.

        Args:
            backend: What `tokenizer.json` describes.
            special_tokens: By name.
            chat_templates: By name; `default` is the one, `tool_use` goes before it with tools.
            add_bos_token: Encoding begins with the `bos_token` where `backend` adds no special
                tokens of its own.
            generates: The model gives text, token by token; else any decoder will do.

        Raises:
            ModelError: The decoder is of an unknown kind, and the model gives text.
        """
        self.special_tokens = dict(special_tokens or {})
        self._chat_templates = dict(chat_templates or {})
        self._templates = TemplateProcess()
        self._backend = backend
        self._decoding = read_decoding(backend) if generates else NO_DECODING
        # A file may hold the limits of a training set; only the request decides what to cut.
        backend.no_truncation()
        backend.no_padding()
        # Tokens that the configuration names are special, even if tokenizer.json omits them.
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
    def load(cls, model: Path, *, generates: bool = True) -> Self:
        """Read the tokenizer of a model.

        Args:
            model: A folder with `tokenizer.json`, perhaps `tokenizer_config.json` and files with
                chat templates, or a GGUF file.
            generates: The model gives text.

        Raises:
            ModelError: A file is missing, unreadable or of an unknown kind.
        """
        if is_gguf(model):
            with ExitStack() as files:
                parts = read_tokenizer(GgufHeader.open(model, files))
            return cls(
                parts.backend,
                special_tokens=parts.special_tokens,
                chat_templates=parts.chat_templates,
                add_bos_token=parts.adds_bos,
            )
        folder, path = model, model / "tokenizer.json"
        data = read_file(path, _MOST_BYTES)
        try:
            backend = tokenizers.Tokenizer.from_buffer(data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            message = f"{path}: not a tokenizer: {one_line(str(error))}"
            raise ModelError(message) from error
        config = optional_json(folder / "tokenizer_config.json")
        special_tokens = _read_special_tokens(folder, config)
        chat_templates = _read_chat_templates(folder, config)
        try:
            return cls(
                backend,
                special_tokens=special_tokens,
                chat_templates=chat_templates,
                add_bos_token=config.get("add_bos_token") is True,
                generates=generates,
            )
        except ModelError as error:
            message = f"{path}: {error}"
            raise ModelError(message) from error

    def files(self) -> dict[str, str]:
        """Return the files from which another program can build this tokenizer, by name.

        They describe the tokenizer as it runs: one of a GGUF file has them, too.
        """
        backend = self._backend
        if self._prefix:
            # What this class adds before a text is a step of the tokenizer there.
            backend = tokenizers.Tokenizer.from_str(backend.to_str())
            bos = self.special_tokens["bos_token"]
            single, pair = f"{bos} $A", f"{bos} $A {bos} $B:1"
            before = processors.TemplateProcessing(
                single=single, pair=pair, special_tokens=[(bos, self._prefix[0])]
            )
            own = backend.post_processor
            backend.post_processor = before if own is None else processors.Sequence([own, before])
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": bool(self._prefix),
            **self.special_tokens,
        }
        templates = self._chat_templates
        if set(templates) == {"default"}:
            config["chat_template"] = templates["default"]
        elif templates:
            config["chat_template"] = [
                {"name": name, "template": template} for name, template in templates.items()
            ]
        return {"tokenizer.json": backend.to_str(), "tokenizer_config.json": json.dumps(config)}

    @cached_property
    def vocab_size(self) -> int:
        """The least number above every id."""
        return max(self._backend.get_vocab().values(), default=-1) + 1

    @cached_property
    def longest_token_bytes(self) -> int | None:
        """The most bytes of a text that one token stands for; None where there is no bound."""
        return longest_token_bytes(self._backend)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return "default" in self._chat_templates

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        Raises:
            RequestError: `BAD_PARAMETER` in `prompt`: the text holds a lone surrogate.
        """
        try:
            # For a batch, unlike for one text, the interpreter's lock is released.
            (encoding,) = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        except (TypeError, UnicodeEncodeError):
            message = "text is not valid Unicode"
            raise RequestError(Reason.BAD_PARAMETER, message, field="prompt") from None
        ids: list[int] = encoding.ids
        return self._prefix + ids if add_special_tokens else ids

    def encode_input(
        self, text: str, second: str | None, most: int | None, *, add_special_tokens: bool
    ) -> tuple[list[int], int]:
        """Return the token ids of a text or a pair, and how many of them have type 0.

        Args:
            text: The text, or the first of a pair.
            second: The second of a pair.
            most: So many ids at most: the ends of the texts are left out, that of the second
                before that of the first. None keeps all.
            add_special_tokens: Whether those of the model go around.

        Raises:
            RequestError: As `encode`.
        """
        texts = [text] if second is None else [text, second]
        try:
            parts = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            message = "text is not valid Unicode"
            raise RequestError(Reason.BAD_PARAMETER, message, field="input") from None
        if most is not None:
            num_added = self._backend.num_special_tokens_to_add(second is not None)
            room = max(0, most - (num_added if add_special_tokens else 0))
            for part in parts:
                part.truncate(room)
                room -= len(part.ids)
        first, pair = parts[0], parts[1] if len(parts) > 1 else None
        whole = self._backend.post_process(first, pair, add_special_tokens)
        ids: list[int] = whole.ids
        return ids, len(ids) - sum(whole.type_ids)

    def render_chat(self, chat: Chat, max_bytes: int | None = None) -> str:
        """Return the text of a conversation; its special tokens are those that the template writes.

        Args:
            chat: The conversation.
            max_bytes: The most that the text may have in UTF-8; None is no limit.

        Raises:
            RequestError: `BAD_PARAMETER` in `chat`: the model has no chat template, or it refuses
                the conversation or needs too much time or memory for it;
                `chat.template_arguments`: a name is reserved, or a value has no form in JSON;
                `chat.tools` and others: the template does not read what is set there, or the
                parameters of a tool are no JSON object;
                `PROMPT_TOO_LONG`: the text has more than `max_bytes`.
        """
        reserved = _RESERVED | self.special_tokens.keys()
        if template_has_tools(chat):
            reserved |= {"tools"}
        if taken := reserved & chat.template_arguments.keys():
            field = "chat.template_arguments"
            message = f"{field}: the name {min(taken)!r} is reserved"
            raise RequestError(Reason.BAD_PARAMETER, message, field=field)
        template = self.chat_template(chat)
        check_template(chat, template, takes_reasoning=THINK_MARK in template)
        tools, messages = template_tools(chat), template_messages(chat, template)
        arguments: dict[str, Any] = {
            "template": template,
            "add_generation_prompt": chat.add_generation_prompt,
            "variables": {
                **self.special_tokens,
                **chat.template_arguments,
                **({} if tools is None else {"tools": tools}),
            },
            "max_bytes": max_bytes,
        }
        try:
            return self._templates.render(messages=messages, **arguments)
        except RequestError as error:
            if error.reason is not Reason.BAD_PARAMETER or not has_malformed_calls(chat):
                raise
        wrap_malformed_calls(messages)
        return self._templates.render(messages=messages, **arguments)

    def chat_template(self, chat: Chat) -> str:
        """Return the template of a conversation: with tools it may be another one.

        Raises:
            RequestError: `BAD_PARAMETER` in `chat`: the model has none.
        """
        templates = self._chat_templates
        template = templates.get("default")
        if template_has_tools(chat) or chat.template_arguments.get("tools"):
            template = templates.get("tool_use", template)
        if template is None:
            message = "the model has no chat template: send text or token ids"
            raise RequestError(Reason.BAD_PARAMETER, message, field="chat")
        return template

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; ids that the tokenizer does not know contribute nothing."""
        # As in `encode`: a batch releases the interpreter's lock.
        (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        return str(text)

    def num_tokens(self, text: str, add_special_tokens: bool = True) -> int:
        """Return the number of token ids of `encode`."""
        return len(self.encode(text, add_special_tokens))

    def special_ids(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of those texts that are special tokens."""
        special = _special_strings(self._backend)
        ids = (self._backend.token_to_id(text) for text in texts if text in special)
        return [token_id for token_id in ids if token_id is not None]

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token contributes to a text; its bytes need not be text by themselves."""
        string = self._backend.id_to_token(token_id) or ""
        return self._decoding.token_bytes(string)

    def token_table(self, logits_width: int) -> _core.TokenTable:
        """Build the table that the scheduler decodes with, for every id that the model can draw.

        Its text equals that of `decode`, token by token.
        """
        return build_token_table(self._backend, self._decoding, logits_width)

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def _special_strings(backend: tokenizers.Tokenizer) -> set[str]:
    added = backend.get_added_tokens_decoder().values()
    return {token.content for token in added if token.special}


def _read_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Collect every `*_token`; files of older models keep them in `special_tokens_map.json`."""
    older = optional_json(folder / "special_tokens_map.json")
    tokens = {}
    for name, value in {**older, **config}.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str) and content:
            tokens[name] = content
    return tokens


def _read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Read the templates by name; files go before what `tokenizer_config.json` holds."""
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
        return read_file(path, MOST_JSON_BYTES).decode()
    except UnicodeDecodeError as error:
        message = f"{path}: not a chat template: {error}"
        raise ModelError(message) from error
