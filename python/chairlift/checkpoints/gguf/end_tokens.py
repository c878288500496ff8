"""The tokens that end an answer, of the metadata of a GGUF file.

Source of the names: `src/llama-vocab.cpp` of llama.cpp.
"""

from typing import Final

import numpy as np

from chairlift.checkpoints.files.fields import Fields

_TEXTS: Final = frozenset(
    (
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|return|>",
        "<|call|>",
    )
)
"""Control tokens that end an answer whether or not the metadata names them."""
_OF_MESSAGES: Final = frozenset(("<|return|>", "<|call|>"))
_END_OF_MESSAGE: Final = "<|end|>"
"""Where there are those tokens it ends a message of an answer, and not the answer."""
_CONTROL: Final = 3


def end_token_ids(metadata: Fields) -> tuple[int, ...]:
    """Return the tokens that end an answer: those that the metadata names, and known others."""
    values = metadata.values
    named = [
        metadata.optional_integer(f"tokenizer.ggml.{name}_token_id", minimum=0)
        for name in ("eos", "eot", "eom")
    ]
    tokens, kinds = values.get("tokenizer.ggml.tokens"), values.get("tokenizer.ggml.token_type")
    known: dict[str, int] = {}
    if isinstance(tokens, list) and isinstance(kinds, np.ndarray) and len(kinds) == len(tokens):
        control = np.flatnonzero(kinds == _CONTROL).tolist()
        known = {tokens[token_id]: token_id for token_id in control if tokens[token_id] in _TEXTS}
    ids = dict.fromkeys((*(i for i in named if i is not None), *known.values()))
    if known.keys() >= _OF_MESSAGES:
        ids.pop(known.get(_END_OF_MESSAGE, -1), None)
    return tuple(ids)
