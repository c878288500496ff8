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

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import one_line, optional_json

_NAMED: Final = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
"""Tokens with a role. One of them that is in no list of tokens may be missing in the vocabulary."""
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_ENCLOSING: Final = frozenset(("BertProcessing", "RobertaProcessing"))
"""Steps of a tokenizer that put a token at both ends of a text."""


class SpecialTokens(NamedTuple):
    """What the files beside tokenizer.json say of tokens."""

    named: dict[str, str]
    """By name: `bos_token`, ..., and those of the model's own."""
    ends: tuple[str, ...]
    """Each `eos_token` that a file names, whichever of the files goes first."""
    listed: tuple[tuple[AddedToken, int | None], ...]
    """Tokens of the lists, in the order of their ids, and the id that a file gives them."""
    is_older_list: bool
    """The list is added_tokens.json: tokenizer.json goes before it where both have an id."""
    roles: tuple[AddedToken, ...]
    """Those of `_NAMED`, as a text is searched for them; they follow, without ids."""
    extra: tuple[AddedToken, ...]
    """Others, which follow those."""


def read_special_tokens(folder: Path, config: Mapping[str, Any]) -> SpecialTokens:
    """Read the tokens that stand beside tokenizer.json.

    Args:
        folder: A folder in which `special_tokens_map.json` and `added_tokens.json` may be.
        config: The contents of `tokenizer_config.json`. Where it has `added_tokens_decoder`, the
            two older files say nothing of tokens; else the first of them takes precedence.

    Raises:
        ModelError: A file is malformed.
    """
    source, map_file = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    decoder = config.get("added_tokens_decoder")
    older_ends = optional_json(map_file)
    older = older_ends if decoder is None else {}
    by_name, known, extra = _extra_tokens(source, config, map_file, older)
    roles = {**config, **older}
    values = {
        **{name: roles[name] for name in _NAMED if name in roles},
        # A name of the model's own is that of the newer file.
        **{name: value for name, value in older.items() if name not in _NAMED},
        **{name: value for name, value in config.items() if name not in _NAMED},
        **by_name,
    }
    values = {n: value for n, value in values.items() if n.endswith("_token") and _content(value)}
    named = {name: _content(value) for name, value in values.items()}
    if decoder is not None:
        listed = _decoder_tokens(source, decoder)
    else:
        special = {named[name] for name in _NAMED if name in named}
        special.update(token.content for token in known)
        listed = _older_tokens(folder / "added_tokens.json", special)
    flags = {token.content: token for token, _ in listed}
    tokens = {
        name: (name in _NAMED and flags.get(named[name])) or _role_token(value)
        for name, value in values.items()
    }
    others = (_role_token(value) for name, value in by_name.items() if name not in values)
    ends = (_content(entries.get("eos_token")) for entries in (config, older_ends))
    return SpecialTokens(
        named,
        tuple(end for end in ends if end),
        listed,
        decoder is None,
        tuple(token for name, token in tokens.items() if name in _NAMED),
        (*(token for name, token in tokens.items() if name not in _NAMED), *others, *extra),
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
    known = backend.get_added_tokens_decoder()
    for token, number in tokens.listed:
        if tokens.is_older_list and number in known:
            continue
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
    processor = backend.post_processor
    steps = [] if processor is None else list(_flat(json.loads(processor.__getstate__())))
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
        template[name] = [
            piece for processor in template[name] for piece in _around(processor, first, last)
        ]
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
        if any(known.content == token.content for known in added):
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
        value: The parsed JSON.
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


def _older_tokens(source: Path, special: set[str]) -> tuple[tuple[AddedToken, int | None], ...]:
    """Read `added_tokens.json`: ids by token."""
    ids = optional_json(source)
    for token, number in ids.items():
        if not token or not isinstance(number, int) or isinstance(number, bool) or number < 0:
            _fail(source, one_line(token) or "a token", "a token's id")
    return tuple(
        (AddedToken(token, normalized=token not in special, special=token in special), number)
        for token, number in sorted(ids.items(), key=lambda entry: entry[1])
    )


def _extra_tokens(
    source: Path, config: Mapping[str, Any], map_file: Path, older: Mapping[str, Any]
) -> tuple[dict[str, Any], list[AddedToken], list[AddedToken]]:
    """Read the lists of special tokens without a role.

    Args:
        source: `tokenizer_config.json`, for messages.
        config: What is in it.
        map_file: `special_tokens_map.json`, for messages.
        older: What is in it and counts.

    Returns:
        Tokens by a name of the model's own, those of the list of newer files, and those that
        count: a list of older files does where there is no newer one.

    Raises:
        ModelError: A list is malformed.
    """
    by_name: dict[str, Any] = {}
    former = _list(source, "additional_special_tokens", config, by_name)
    newer = _list(source, "extra_special_tokens", config, by_name) or former
    more = _list(map_file, "extra_special_tokens", older, by_name, special=True)
    if more is not None:
        newer = [*(newer or []), *more]
    former = _list(map_file, "additional_special_tokens", older, by_name, special=True)
    return by_name, newer or [], (former or []) if newer is None else newer


def _list(
    path: Path,
    name: str,
    values: Mapping[str, Any],
    by_name: dict[str, Any],
    *,
    special: bool | None = None,
) -> list[AddedToken] | None:
    """Return the tokens of a list; one by names goes into `by_name`, and None is none.

    Args:
        path: Path of the file, for messages.
        name: Name of the list.
        values: The contents of the file.
        by_name: Takes the entries of an object.
        special: What objects are, whatever they say; None leaves that to them. Texts are special.
    """
    listed = values.get(name)
    if listed is None:
        return None
    if not isinstance(listed, list | dict):
        _fail(path, name, "a list of tokens")
    tokens = []
    for value in listed.values() if isinstance(listed, dict) else listed:
        token = _token(value, special=True if isinstance(value, str) else special)
        if token is None:
            _fail(path, name, "a list of tokens")
        tokens.append(token)
    if isinstance(listed, dict):
        by_name |= listed
        return None
    return tokens


def _fail(path: Path, name: str, expected: str) -> NoReturn:
    message = f"{path}: {name}: expected {expected}"
    raise ModelError(message)
