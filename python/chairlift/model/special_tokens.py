"""The special tokens of a text: those beside tokenizer.json, and those that go around each text.

`transformers` is the oracle of the first: it reads the same files in the same order. It does not
read `add_bos_token` and `add_eos_token` where there is a tokenizer.json, which its earlier versions
and the authors' own code did: here they hold at an end to which tokenizer.json adds nothing.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import tokenizers
from tokenizers import AddedToken, processors

from chairlift.errors import ModelError
from chairlift.model.fields import one_line, optional_json

_NAMED: Final = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
"""Tokens with a role. One of them that is in no list of tokens may be missing in the vocabulary."""
_EXTRA: Final = ("additional_special_tokens", "extra_special_tokens")
"""Lists of special tokens without a role."""
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_ENCLOSING: Final = frozenset(("BertProcessing", "RobertaProcessing"))
"""Steps of a tokenizer that put a token at both ends of a text."""


class SpecialTokens(NamedTuple):
    """What the files beside tokenizer.json say of tokens."""

    named: dict[str, str]
    """By name: `bos_token`, ..., and those of the model's own."""
    listed: tuple[tuple[AddedToken, int | None], ...]
    """Tokens of the lists, in the order of their ids, and the id that a file gives them."""
    roles: tuple[AddedToken, ...]
    """Those of `_NAMED`, as a text is searched for them; they follow, without ids."""
    extra: tuple[AddedToken, ...]
    """Others, which follow those."""


def read_special_tokens(folder: Path, config: Mapping[str, Any]) -> SpecialTokens:
    """Read the tokens that stand beside tokenizer.json.

    Args:
        folder: Perhaps with `special_tokens_map.json` and `added_tokens.json`.
        config: Of `tokenizer_config.json`. Where it has `added_tokens_decoder`, the two older files
            say nothing of tokens.

    Raises:
        ModelError: A file is malformed.
    """
    source = folder / "tokenizer_config.json"
    older = optional_json(folder / "special_tokens_map.json")
    entries = {**older, **{name: value for name, value in config.items() if value is not None}}
    named = {
        name: token
        for name, value in entries.items()
        if name.endswith("_token") and (token := _content(value))
    }
    decoder = config.get("added_tokens_decoder")
    lists = [config] if decoder is not None else [config, older]
    extra = tuple(token for values in lists for token in _extra_tokens(source, values))
    if decoder is not None:
        listed = _decoder_tokens(source, decoder)
    else:
        # What the older file has in its older list is not special here.
        newer = {name: value for name, value in older.items() if name == _EXTRA[1]}
        known = (t.content for values in (config, newer) for t in _extra_tokens(source, values))
        roles = (token for name, token in named.items() if name in _NAMED)
        listed = _legacy_tokens(folder / "added_tokens.json", {*roles, *known})
    flags = {token.content: token for token, _ in listed}
    tokens = {
        name: flags.get(named[name]) or _role_token(entries[name])
        for name in (*_NAMED, *named)
        if name in named
    }
    return SpecialTokens(
        named,
        listed,
        tuple(token for name, token in tokens.items() if name in _NAMED),
        (*(token for name, token in tokens.items() if name not in _NAMED), *extra),
    )


def add_tokens(backend: tokenizers.Tokenizer, tokens: SpecialTokens, num_ids: int | None) -> None:
    """Let a tokenizer find tokens in texts; they get ids behind its own, or keep those they have.

    Args:
        backend: The tokenizer.
        tokens: What to add.
        num_ids: Tokens of the model. None is unknown. A token for which it has no room is no token;
            where the number is unknown, neither is a named one that no list has.

    Raises:
        ModelError: A token would get another id than its file gives it.
    """
    for token, number in tokens.listed:
        if _add(backend, token, num_ids, keeps=False):
            _check_id(backend, token, number)
    for token in tokens.roles:
        if num_ids is not None or backend.token_to_id(token.content) is not None:
            _add(backend, token, num_ids, keeps=True)
    for token in tokens.extra:
        _add(backend, token, num_ids, keeps=True)


def add_at_ends(backend: tokenizers.Tokenizer, first: str | None, last: str | None) -> bool:
    """Let a tokenizer put tokens before and after each text, where it puts none there itself.

    Args:
        backend: The tokenizer, which has the tokens.
        first: The token before a text; None adds none.
        last: The token after a text.

    Returns:
        Whether something was added.
    """
    own = backend.post_processor
    steps = [] if own is None else list(_flat(json.loads(own.__getstate__())))
    kinds = [step["type"] for step in steps]
    if not _ENCLOSING.isdisjoint(kinds):
        return False
    if "TemplateProcessing" not in kinds:
        one, two = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
        steps.append(
            {
                "type": "TemplateProcessing",
                "single": [one],
                "pair": [one, two],
                "special_tokens": {},
            }
        )
        kinds.append("TemplateProcessing")
    template = steps[kinds.index("TemplateProcessing")]
    single = template["single"]
    first = None if "Sequence" not in single[0] else first
    last = None if "Sequence" not in single[-1] else last
    if first is None and last is None:
        return False
    for name in ("single", "pair"):
        template[name] = [piece for own in template[name] for piece in _around(own, first, last)]
    for token in (first, last):
        if token is None:
            continue
        ids = [backend.token_to_id(token)]
        template["special_tokens"][token] = {"id": token, "ids": ids, "tokens": [token]}
    whole = processors.Sequence([])
    whole.__setstate__(json.dumps({"type": "Sequence", "processors": steps}).encode())
    backend.post_processor = whole
    return True


def _around(piece: dict[str, Any], first: str | None, last: str | None) -> Iterator[dict[str, Any]]:
    """Yield a part of a template; one that stands for a text has tokens around it."""
    if "Sequence" not in piece:
        yield piece
        return
    type_id = piece["Sequence"]["type_id"]
    if first is not None:
        yield {"SpecialToken": {"id": first, "type_id": type_id}}
    yield piece
    if last is not None:
        yield {"SpecialToken": {"id": last, "type_id": type_id}}


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] == "Sequence":
        for inner in step["processors"]:
            yield from _flat(inner)
    else:
        yield step


def _add(
    backend: tokenizers.Tokenizer, token: AddedToken, num_ids: int | None, *, keeps: bool
) -> bool:
    """Add a token where the model has room for it.

    Args:
        backend: The tokenizer.
        token: Replaces how the tokenizer searches for an equal one, unless `keeps`.
        num_ids: Tokens of the model.
        keeps: An added token of the same text stays as it is.

    Returns:
        Whether the tokenizer has it.
    """
    is_new = backend.token_to_id(token.content) is None
    # The next id is the number of tokens.
    if is_new and num_ids is not None and backend.get_vocab_size() >= num_ids:
        return False
    if keeps:
        added = backend.get_added_tokens_decoder().values()
        if any(own.content == token.content for own in added):
            return True
    backend.add_tokens([token])
    return True


def _check_id(backend: tokenizers.Tokenizer, token: AddedToken, number: int | None) -> None:
    got = backend.token_to_id(token.content)
    if number is not None and got != number:
        message = (
            f"added tokens: expected the id {number} for {one_line(token.content)!r}, got {got}"
            " behind the tokens of tokenizer.json"
        )
        raise ModelError(message)


def _content(value: object) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _role_token(value: object) -> AddedToken:
    """Return a named token: one that is written as an object has its flags."""
    return _token(value, special=True) or AddedToken(_content(value), special=True)


def _token(value: object, *, special: bool | None = None) -> AddedToken | None:
    """Return a token of a text or an object; None where it is neither.

    Args:
        value: As parsed.
        special: What it is, whatever an object says.
    """
    if isinstance(value, str):
        return AddedToken(value, special=bool(special)) if value else None
    if not isinstance(value, dict) or not _content(value):
        return None
    flags = {name: value[name] for name in _FLAGS if value.get(name) is not None}
    if any(not isinstance(flag, bool) for flag in flags.values()):
        return None
    return AddedToken(
        value["content"], **{**flags, **({} if special is None else {"special": special})}
    )


def _decoder_tokens(source: Path, decoder: object) -> tuple[tuple[AddedToken, int | None], ...]:
    """Read `added_tokens_decoder`: objects by id."""
    if not isinstance(decoder, dict):
        _fail(source, "added_tokens_decoder", "tokens by their id")
    tokens = {}
    for key, value in decoder.items():
        token = _token(value) if isinstance(value, dict) else None
        if not key.isascii() or not key.isdigit() or len(key) > 10 or token is None:
            _fail(source, "added_tokens_decoder", f"a token by its id, got {one_line(repr(key))}")
        tokens[int(key)] = token
    return tuple((tokens[number], number) for number in sorted(tokens))


def _legacy_tokens(source: Path, special: set[str]) -> tuple[tuple[AddedToken, int | None], ...]:
    """Read `added_tokens.json`: ids by token."""
    ids = optional_json(source)
    for token, number in ids.items():
        if not token or not isinstance(number, int) or isinstance(number, bool) or number < 0:
            _fail(source, one_line(token) or "a token", "a token's id")
    return tuple(
        (AddedToken(token, normalized=token not in special, special=token in special), number)
        for token, number in sorted(ids.items(), key=lambda entry: entry[1])
    )


def _extra_tokens(source: Path, values: Mapping[str, Any]) -> Iterator[AddedToken]:
    """Yield the special tokens of lists."""
    for name in _EXTRA:
        listed = values.get(name)
        if listed is None:
            continue
        if not isinstance(listed, list | dict):
            _fail(source, name, "a list of tokens")
        for value in listed.values() if isinstance(listed, dict) else listed:
            token = _token(value, special=True)
            if token is None:
                _fail(source, name, "a list of tokens")
            yield token


def _fail(path: Path, name: str, expected: str) -> NoReturn:
    message = f"{path}: {name}: expected {expected}"
    raise ModelError(message)
