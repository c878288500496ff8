"""Whether the grammar of a constraint accepts a text, and whether JSON Schema does."""

import json
import random
from typing import Any

import torch
from chairlift import _core
from chairlift.api.constraints import Source
from chairlift.engine.prepare.grammars import ConstraintPreparer

END = 256
TOKENS = [*(bytes([byte]) for byte in range(256)), b"<end>"]


class Judge:
    """Compiles schemas over bytes as tokens."""

    def __init__(self) -> None:
        self._preparer = ConstraintPreparer(_core.TokenTable(TOKENS, [END]), (END,))
        self._constraints = _core.Constraints(1)

    def compile(self, text: str, kind: str = "json_schema") -> _core.Grammar:
        """Return the grammar of a constraint; RequestError if it is refused."""
        return self._preparer.compile(Source(kind, text), "judge")

    def accepts(self, grammar: _core.Grammar, text: str) -> bool:
        """Return whether an answer may be this text and end there."""
        data = list(text.encode())
        self._constraints.begin(0, 1, 0, grammar, 1)
        # The whole text as drafts: each mask holds for the byte that follows.
        last = torch.tensor([0, *data], dtype=torch.int32)
        position = torch.arange(1, len(data) + 2, dtype=torch.int32)
        masks = self._constraints.start(torch.zeros_like(position), position, last)
        assert masks is not None
        allowed = masks.allowed()
        followed = [*data, END]
        # Behind a byte that may not follow there is no mask.
        return all(
            a is not None and token in set(a) for a, token in zip(allowed, followed, strict=True)
        )

    def walk(self, grammar: _core.Grammar, draw: random.Random, most: int = 120) -> str | None:
        """Return an answer drawn at random; None: it has not ended after so many bytes.

        Raises:
            DeadEndError: The bytes so far may be followed by none.
        """
        self._constraints.begin(0, 1, 0, grammar, 1)
        data = bytearray()
        for _ in range(most):
            last = torch.tensor([data[-1] if data else 0], dtype=torch.int32)
            position = torch.tensor([len(data) + 1], dtype=torch.int32)
            masks = self._constraints.start(torch.zeros_like(position), position, last)
            assert masks is not None
            (allowed,) = masks.allowed()
            if not allowed:
                raise DeadEndError(data.decode(errors="replace"))
            closing = [token for token in allowed if token == END or token in b'"]},']
            token = draw.choice(closing if closing and draw.random() < 0.5 else allowed)
            if token == END:
                return data.decode()
            data.append(token)
        return None


class DeadEndError(Exception):
    """What a grammar has begun, it cannot go on with."""


def written(value: Any) -> str:
    """Return a value as an answer writes it: no white space, integers without a fraction."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
