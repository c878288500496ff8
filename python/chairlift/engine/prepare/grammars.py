"""Compiled constraints, and a bounded cache of them.

A process with bounds compiles each new constraint first, and only what has passed there is compiled
here, where long texts are tokenized, off the engine's thread. What was compiled, and what was
refused, is kept per tenant: no tenant learns from a fast answer what another has asked for.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from chairlift import _core
from chairlift.api.constraints import Source, source
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Constraint
from chairlift.engine.prepare.refusals import Refusals
from chairlift.text.constraints.constraint_process import ConstraintProcess

MAX_TENANT_GRAMMARS: Final = 64
"""That are kept for one tenant."""
MAX_TENANT_BYTES: Final = 64 * 2**20
"""About, of what these take."""
MAX_GRAMMARS: Final = 1024
"""That are kept for all tenants."""
MAX_BYTES: Final = 256 * 2**20

_FIXED_BYTES: Final = 4096
"""What a grammar takes besides what it counts."""


@dataclass(slots=True)
class _Kept:
    """The grammars of one tenant, the least recently used first."""

    grammars: OrderedDict[Source, _core.Grammar] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def drop(self) -> int:
        """Forget the least recently used; return what it took."""
        source, grammar = self.grammars.popitem(last=False)
        size = _size(source, grammar)
        self.num_bytes -= size
        return size


def _size(source: Source, grammar: _core.Grammar) -> int:
    """Return about how many bytes a kept grammar takes, with the text that it is found by."""
    return grammar.num_bytes + source.num_bytes + _FIXED_BYTES


class GrammarCache:
    """Compiled grammars by tenant and source; any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tenants: OrderedDict[str, _Kept] = OrderedDict()
        """The tenant that used it least recently first."""
        self._num_bytes = self._num_grammars = 0

    def get(self, tenant: str, source: Source) -> _core.Grammar | None:
        """Return a grammar of the tenant, if it is kept."""
        with self._lock:
            kept = self._tenants.get(tenant)
            grammar = None if kept is None else kept.grammars.get(source)
            if kept is not None and grammar is not None:
                kept.grammars.move_to_end(source)
                self._tenants.move_to_end(tenant)
            return grammar

    def put(self, tenant: str, source: Source, grammar: _core.Grammar) -> None:
        """Keep a grammar, in the place of what was used least recently."""
        size = _size(source, grammar)
        if size > MAX_TENANT_BYTES:
            return
        with self._lock:
            kept = self._tenants.setdefault(tenant, _Kept())
            self._tenants.move_to_end(tenant)
            if source in kept.grammars:
                return
            while kept.grammars and (
                len(kept.grammars) >= MAX_TENANT_GRAMMARS
                or kept.num_bytes + size > MAX_TENANT_BYTES
            ):
                self._dropped(kept.drop())
            kept.grammars[source] = grammar
            kept.num_bytes += size
            self._num_bytes += size
            self._num_grammars += 1
            while self._num_grammars > MAX_GRAMMARS or self._num_bytes > MAX_BYTES:
                name, oldest = next(iter(self._tenants.items()))
                self._dropped(oldest.drop())
                if not oldest.grammars:
                    del self._tenants[name]

    def __len__(self) -> int:
        return self._num_grammars

    def _dropped(self, size: int) -> None:
        self._num_bytes -= size
        self._num_grammars -= 1


class ConstraintPreparer:
    """Checks constraints and compiles them; any thread may use it."""

    def __init__(self, token_table: _core.TokenTable, end_ids: tuple[int, ...]) -> None:
        """Keep what constraints are compiled against.

        Args:
            token_table: The model's tokens.
            end_ids: Tokens that end a text: drawn where a constraint may end.
        """
        self._process = ConstraintProcess(token_table, end_ids)
        self._compiler = _core.GrammarCompiler(token_table, end_ids)
        self._cache = GrammarCache()
        self._refusals = Refusals()
        self.end_ids = end_ids

    def check(self, constraint: Constraint) -> Source:
        """Check a constraint but for what it says, which takes no time.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        self.check_support("constraint")
        return source(constraint)

    def check_support(self, field: str) -> None:
        """Refuse what needs a constraint, where the model has none.

        Raises:
            RequestError: `UNSUPPORTED` in this field.
        """
        if not self.end_ids:
            message = f"{field}: the model has no token that ends a text"
            raise RequestError(Reason.UNSUPPORTED, message, field=field)

    def is_known(self, constraint: Constraint, tenant: str) -> bool:
        """Return whether a constraint is kept as a grammar, or is refused by its form alone."""
        try:
            return self._cache.get(tenant, self.check(constraint)) is not None
        except RequestError:
            return True

    def compile(self, source: Source, tenant: str) -> _core.Grammar:
        """Return the grammar of a constraint, which may take some tens of milliseconds.

        Raises:
            RequestError: With the path of the field, and what the parser says; as
                `ConstraintProcess.checked`.
        """
        grammar = self._cache.get(tenant, source)
        if grammar is None:
            self._refusals.check(tenant, source)
            try:
                grammar = self._compiled(source)
            except RequestError as error:
                self._refusals.put(tenant, source, error)
                raise
            self._cache.put(tenant, source, grammar)
        return grammar

    def _compiled(self, source: Source) -> _core.Grammar:
        checked = self._process.checked(source)
        try:
            return self._compiler.compile(checked.kind, checked.text, checked.choices)
        except ValueError as error:
            message = f"{source.field}: {error}"
            raise RequestError(Reason.BAD_PARAMETER, message, field=source.field) from None
