"""Text and conversations to token ids, and back."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers import AddedToken, normalizers

from chairlift import _core
from chairlift.api.errors import ModelError, Reason, RequestError
from chairlift.api.types import Chat
from chairlift.checkpoints.files.fields import one_line, optional_json, read_file
from chairlift.checkpoints.files.folder import CONFIG, is_gguf
from chairlift.checkpoints.gguf.reader import GgufHeader
from chairlift.checkpoints.gguf.tokenizer import read_tokenizer
from chairlift.text.chat.chat_values import (
    check_template,
    has_malformed_calls,
    template_has_tools,
    template_messages,
    template_tools,
    wrap_malformed_calls,
)
from chairlift.text.chat.template_files import read_chat_templates
from chairlift.text.chat.template_process import TemplateProcess
from chairlift.text.special_tokens import add_at_ends, add_tokens, read_special_tokens
from chairlift.text.text_bound import check_growth, longest_token_bytes
from chairlift.text.token_table import NO_DECODING, Pieces, build_token_table, read_decoding

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

_MAX_BYTES = 256 << 20
"""Largest tokenizer.json; those of 250,000 tokens take 35 MB."""

THINK_MARK = "</think>"
"""Ends the reasoning of an answer; a template that names it may leave out that of earlier ones."""


class Tokenizer:
    """The tokenizer and chat template of one model. Any thread may call any method at any time.

    Attributes:
        special_tokens: Strings by name (`bos_token`, `eos_token`, ...), as chat templates see them.
        bos_token_id: None where the model has none.
        eos_token_ids: The end token, if the tokenizer's configuration names one, and others that
            its files name.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        add_bos_token: bool = False,
        add_eos_token: bool = False,
        ends: Sequence[str] = (),
        generates: bool = True,
    ) -> None:
        """Take over `backend`.

        Args:
            backend: What `tokenizer.json` describes.
            special_tokens: By name.
            chat_templates: By name; `default` is the one, `tool_use` goes before it with tools.
            add_bos_token: Encoding begins with the `bos_token` where `backend` begins with no
                special token of its own.
            add_eos_token: It ends with the `eos_token`, likewise.
            ends: Tokens beside that one which end an answer.
            generates: The model gives text, token by token; else any decoder will do.

        Raises:
            ModelError: The decoder is of an unknown kind, and the model gives text; or texts become
                much longer.
        """
        self.special_tokens = dict(special_tokens or {})
        self._chat_templates = dict(chat_templates or {})
        self._templates = TemplateProcess()
        self._backend = backend
        self._decoding = read_decoding(backend) if generates else NO_DECODING
        check_growth(backend, decodes=not generates)
        # A file may hold the limits of a training set; only the request decides what to cut.
        backend.no_truncation()
        backend.no_padding()
        _mark_special(backend, self.special_tokens.values())
        self.pieces = Pieces(backend, self._decoding, _special_strings(backend))
        self.bos_token_id = self._special_id("bos_token")
        eos_token_id = self._special_id("eos_token")
        ids = (eos_token_id, *map(backend.token_to_id, ends))
        self.eos_token_ids = tuple(dict.fromkeys(end for end in ids if end is not None))
        self._adds_bos = add_bos_token and self.bos_token_id is not None
        self._adds_eos = add_eos_token and eos_token_id is not None
        # A step of the backend: every way to encode a text goes through it.
        add_at_ends(
            backend,
            self.special_tokens["bos_token"] if self._adds_bos else None,
            self.special_tokens["eos_token"] if self._adds_eos else None,
        )

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
                add_eos_token=parts.adds_eos,
            )
        folder, path = model, model / "tokenizer.json"
        data = read_file(path, _MAX_BYTES)
        try:
            backend = tokenizers.Tokenizer.from_buffer(data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            message = f"{path}: not a tokenizer: {one_line(str(error))}"
            raise ModelError(message) from error
        config = optional_json(folder / "tokenizer_config.json")
        special_tokens = read_special_tokens(folder, config)
        chat_templates = read_chat_templates(folder, config)
        try:
            add_tokens(backend, special_tokens, _num_ids(folder))
            return cls(
                backend,
                special_tokens=special_tokens.named,
                chat_templates=chat_templates,
                add_bos_token=config.get("add_bos_token") is True,
                add_eos_token=config.get("add_eos_token") is True,
                ends=special_tokens.ends,
                generates=generates,
            )
        except ModelError as error:
            message = f"{path}: {error}"
            raise ModelError(message) from error

    def files(self) -> dict[str, str]:
        """Return the files from which another program can build this tokenizer, by name.

        They describe the tokenizer as it runs: one of a GGUF file has them, too.
        """
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self._adds_bos,
            "add_eos_token": self._adds_eos,
            **self.special_tokens,
        }
        templates = self._chat_templates
        if set(templates) == {"default"}:
            config["chat_template"] = templates["default"]
        elif templates:
            config["chat_template"] = [
                {"name": name, "template": template} for name, template in templates.items()
            ]
        return {
            "tokenizer.json": self._backend.to_str(),
            "tokenizer_config.json": json.dumps(config),
        }

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
        return ids

    def encode_input(
        self, text: str, second: str | None, max_num: int | None, *, add_special_tokens: bool
    ) -> tuple[list[int], int]:
        """Return the token ids of a text or a pair, and how many of them have type 0.

        Args:
            text: The text, or the first of a pair.
            second: The second of a pair.
            max_num: So many ids at most: the ends of the texts are left out, that of the second
                before that of the first. None keeps all.
            add_special_tokens: Whether those of the model go around.

        Raises:
            RequestError: See `encode`.
        """
        texts = [text] if second is None else [text, second]
        try:
            parts = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            message = "text is not valid Unicode"
            raise RequestError(Reason.BAD_PARAMETER, message, field="input") from None
        if max_num is not None:
            num_added = self._backend.num_special_tokens_to_add(second is not None)
            room = max(0, max_num - (num_added if add_special_tokens else 0))
            for part in parts:
                part.truncate(room)
                room -= len(part.ids)
        first, pair = parts[0], parts[1] if len(parts) > 1 else None
        whole = self._backend.post_process(first, pair, add_special_tokens)
        ids: list[int] = whole.ids
        return ids, len(ids) - sum(whole.type_ids)

    def lower_case(self) -> None:
        """Write each text in lower case, as `do_lower_case` of sentence-transformers asks."""
        normalizer = self._backend.normalizer
        steps = (
            [normalizers.Lowercase()]
            if normalizer is None
            else [normalizers.Lowercase(), normalizer]
        )
        self._backend.normalizer = normalizers.Sequence(steps)

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
        # The reason is that of `encode`: a batch releases the interpreter's lock.
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


def _mark_special(backend: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    """Make tokens that the configuration names special, even if tokenizer.json omits them."""
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for token in sorted(set(tokens)):
        known = added.get(token)
        if known is None and backend.token_to_id(token) is not None:
            backend.add_special_tokens([token])
        elif known is not None and not known.special:
            marked = AddedToken(
                token,
                single_word=known.single_word,
                lstrip=known.lstrip,
                rstrip=known.rstrip,
                normalized=known.normalized,
                special=True,
            )
            backend.add_special_tokens([marked])


def _num_ids(folder: Path) -> int | None:
    """Return the ids that the model beside a tokenizer has; None where config.json names none."""
    config = optional_json(folder / CONFIG)
    text = config.get("text_config")
    values = (fields.get("vocab_size") for fields in (text, config) if isinstance(fields, dict))
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool)), None)
