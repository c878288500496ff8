"""The model's text before an input: by its name, or by what the input is for."""

from typing import Final

from chairlift.api.errors import Reason, RequestError
from chairlift.api.pooled import PoolingAbilities
from chairlift.api.types import Pooling

_ROLES: Final = (
    # The order within a role is the one in which sentence-transformers looks for a prompt.
    ("query", "search_query"),
    ("document", "passage", "corpus", "search_document"),
)
"""Names under which models and clients know a text that searches, and one that is found."""


def prompt_text(pooling: Pooling, abilities: PoolingAbilities) -> str:
    """Return what goes before a text; empty is nothing.

    Without a name and an `input_type` it is the model's default. A query or a document for which
    the model has no prompt has none, as with `encode_query` and `encode_document` of
    sentence-transformers.

    Args:
        pooling: Options of the request.
        abilities: What the model has.

    Raises:
        RequestError: The model has no such prompt, with the path of the field.
    """
    prompts = dict(abilities.prompts)
    if pooling.input_type and any(prompts.values()):
        if pooling.prompt_name is not None:
            expected = "none beside prompt_name"
            raise _bad(expected, "both", field="input_type")
        return prompts.get(_of_input_type(pooling.input_type, prompts), "")
    name = abilities.default_prompt if pooling.prompt_name is None else pooling.prompt_name
    if not name:
        return ""
    if name not in prompts:
        expected = f"one of the model's prompts ({_listed(prompts)})"
        raise _bad(expected, "another", field="prompt_name")
    return prompts[name]


def check_without_text(pooling: Pooling, abilities: PoolingAbilities) -> None:
    """Check that nothing would go before token ids, which are used as they are.

    Raises:
        RequestError: The request names a prompt.
    """
    if pooling.input_type or pooling.prompt_name:
        field = "input_type" if pooling.input_type else "prompt_name"
        if prompt_text(pooling, abilities):
            expected = "a text to put a prompt before"
            raise _bad(expected, "token ids", field=field)


def _of_input_type(given: str, prompts: dict[str, str]) -> str:
    """Return the name of a prompt, which the model may lack for a query or a document."""
    if given in prompts:
        return given
    role = next((names for names in _ROLES if given in names), None)
    if role is None:
        known = sorted({*prompts, *_ROLES[0], *_ROLES[1]})
        expected = f"one of {', '.join(known)}"
        raise _bad(expected, "another", field="input_type")
    return next((name for name in role if name in prompts), role[0])


def _listed(prompts: dict[str, str]) -> str:
    return ", ".join(sorted(prompts)) or "none"


def _bad(expected: str, got: str, *, field: str) -> RequestError:
    message = f"{field}: expected {expected}, got {got}"
    return RequestError(Reason.BAD_PARAMETER, message, field=field)
