"""The adapters (LoRA) of an engine by name, and the slots of the model's tables that hold them.

    begin_load -> read (any thread) -> install (engine thread)      READY: requests may name it
    begin_unload (any thread) -> its requests end -> end_unload (engine thread)

Names are looked up on any thread, under a lock; what a slot holds changes on the engine's thread
alone, between two steps, and only while no request uses it. Each load has a number of its own, so
that nothing that was computed with an adapter is taken for another of the same name.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from chairlift.api.config import ADAPTER_NAME, EngineConfig
from chairlift.api.errors import ModelError, Reason, RequestError
from chairlift.api.home import expanded
from chairlift.engine.lora.types import MAX_TENANTS, AdapterInfo, AdapterState, AdapterUse
from chairlift.model.config import ModelConfig
from chairlift.model.lora.config import FILE as CONFIG_FILE
from chairlift.model.lora.folder import AdapterFolder
from chairlift.model.lora.load import FILE as TENSOR_FILE
from chairlift.model.lora.load import PackedAdapter
from chairlift.model.lora.tables import AdapterTables

OnBadAdapter = Callable[[str, ModelError], None]
"""Called with the name of an adapter and why it cannot be loaded."""


@dataclass(slots=True)
class _Entry:
    name: str
    slot: int
    generation: int
    folder: Path | AdapterFolder
    tenants: frozenset[str]
    state: AdapterState = field(default=AdapterState.LOADING)
    rank: int = 0
    num_bytes: int = 0
    is_on_demand: bool = False
    """It makes room for another one when nothing uses it."""
    last_use: int = 0
    """Number of the last request that named it; 0: none has."""
    use: "weakref.ref[AdapterUse] | None" = None
    """What requests hold that are prepared, or run."""

    def info(self) -> AdapterInfo:
        return AdapterInfo(
            name=self.name,
            slot=self.slot,
            generation=self.generation,
            state=self.state,
            rank=self.rank,
            num_bytes=self.num_bytes,
            tenants=tuple(sorted(self.tenants)),
        )


class Adapters:
    """The adapters of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelConfig,
        tables: AdapterTables | None,
        users: Callable[[int], Sequence[int]],
        on_emptied: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Begin without adapters.

        Args:
            config: The engine's settings.
            model: What adapters are for.
            tables: The tables of the forward pass; None takes no adapter.
            users: Returns the requests that keep a slot in use; called on the engine's thread.
            on_emptied: Called on that thread with a slot whose adapter is unloaded.
        """
        self._users = users
        self._on_emptied = on_emptied
        self._config = config
        self._model = model
        self._tables = tables
        self._lock = threading.Lock()
        self._by_name: dict[str, _Entry] = {}
        self._free = list(range(0 if tables is None else tables.num_slots, 0, -1))
        self._generations = count(1)
        self._uses = count(1)

    # --- any thread ---------------------------------------------------------------------------

    def find(self, name: str, tenant: str) -> AdapterUse:
        """Return the adapter of a request; `make_room` leaves it while the value is kept.

        Raises:
            RequestError: There is none that the tenant may use.
        """
        with self._lock:
            entry = self._by_name.get(name)
            if entry is not None and entry.state is AdapterState.READY and _serves(entry, tenant):
                entry.last_use = next(self._uses)
                use = None if entry.use is None else entry.use()
                if use is None:
                    use = AdapterUse(name, entry.slot, entry.generation)
                    entry.use = weakref.ref(use)
                return use
        # The same for one of another tenant: its name is none of this one's business.
        message = "adapter: this server has none of that name for this tenant"
        raise RequestError(Reason.UNKNOWN_ADAPTER, message, field="adapter")

    def names(self, tenant: str) -> list[str]:
        """Return the names that requests of a tenant may use."""
        with self._lock:
            return sorted(
                entry.name
                for entry in self._by_name.values()
                if entry.state is AdapterState.READY and _serves(entry, tenant)
            )

    def tenants_of(self, name: str) -> "list[str]":
        """Return the tenants that the settings give an adapter; none is all."""
        pairs = _pairs(self._config.adapter_tenants)
        return [tenant for adapter, tenant in pairs if adapter == name]

    def allows(self, name: str, tenant: str) -> bool:
        """Return whether a tenant may use an adapter of such a name, if there is one."""
        tenants = self.tenants_of(name)
        return ADAPTER_NAME.fullmatch(name) is not None and (not tenants or tenant in tenants)

    def can_load(self, name: str, tenant: str) -> bool:
        """Return whether `adapter_folder` has an adapter for a tenant; this reads the disk."""
        if not self.allows(name, tenant):
            return False
        try:
            folder = self.in_folder(name)
        except RequestError:
            return False
        return (folder.path / CONFIG_FILE).is_file()

    def list(self) -> "list[AdapterInfo]":
        """Return all adapters, by name."""
        with self._lock:
            return [self._by_name[name].info() for name in sorted(self._by_name)]

    def in_folder(self, name: str) -> AdapterFolder:
        """Return the folder of an adapter below `adapter_folder`.

        Raises:
            RequestError: There is no such setting, the name is malformed, or a link leads out.
        """
        if self._config.adapter_folder is None:
            message = "folder: this server has no adapter_folder to load adapters from"
            raise RequestError(Reason.UNSUPPORTED, message, field="folder")
        _check_name(name, "folder")
        root = Path(self._config.adapter_folder).resolve()
        folder = root / name
        for path in (folder, folder / CONFIG_FILE, folder / TENSOR_FILE):
            # The loader tells of a file that is missing.
            if not _is_inside(path, root):
                message = "folder: expected one inside adapter_folder, got a link out of it"
                raise RequestError(Reason.BAD_PARAMETER, message, field="folder")
        return AdapterFolder(folder, root)

    def begin_load(
        self,
        name: str,
        folder: Path | AdapterFolder,
        tenants: Iterable[str] = (),
        *,
        is_on_demand: bool = False,
    ) -> AdapterInfo:
        """Reserve a name and a slot.

        Args:
            name: New.
            folder: Where its files are.
            tenants: Those that may use it; none is all.
            is_on_demand: It makes room for another one when nothing uses it.

        Raises:
            RequestError: The name is malformed or in use, or there is no room.
        """
        _check_name(name, "name")
        allowed = frozenset(tenants)
        if len(allowed) > MAX_TENANTS:
            message = f"tenants: expected at most {MAX_TENANTS}, got {len(allowed)}"
            raise RequestError(Reason.BAD_PARAMETER, message, field="tenants")
        with self._lock:
            if (known := self._by_name.get(name)) is not None:
                message = f"name: expected one that is free, got one that is {known.state}"
                raise RequestError(Reason.BAD_PARAMETER, message, field="name")
            if not self._free:
                limit = 0 if self._tables is None else self._tables.num_slots
                message = f"adapters: expected at most {limit} (max_adapters), got one more"
                raise RequestError(Reason.QUOTA_EXCEEDED, message)
            entry = _Entry(name, self._free.pop(), next(self._generations), folder, allowed)
            entry.is_on_demand = is_on_demand
            self._by_name[name] = entry
            return entry.info()

    def read(self, adapter: AdapterInfo) -> PackedAdapter:
        """Read and pack an adapter whose load has begun; it takes time and changes nothing.

        Raises:
            ModelError: It cannot be loaded.
        """
        folder = self._by_name[adapter.name].folder
        assert self._tables is not None, "a load has begun"
        return self._tables.read(folder, self._model, self._config.max_adapter_rank)

    def drop(self, adapter: AdapterInfo) -> None:
        """Forget a load that has failed."""
        with self._lock:
            if self._is_in(adapter, AdapterState.LOADING):
                self._release(adapter)

    def begin_unload(self, name: str) -> AdapterInfo:
        """Refuse new requests for an adapter; a second call has no effect.

        Raises:
            RequestError: There is none of that name, or it is being loaded.
        """
        with self._lock:
            entry = self._by_name.get(name)
            if entry is None or entry.state is AdapterState.LOADING:
                message = "name: no adapter of that name is loaded"
                raise RequestError(Reason.UNKNOWN_ADAPTER, message, field="name")
            entry.state = AdapterState.UNLOADING
            return entry.info()

    # --- the engine's thread --------------------------------------------------------------------

    def check(self, use: AdapterUse) -> None:
        """Check that the adapter of a request that was prepared before is still there.

        Raises:
            RequestError: It is not.
        """
        with self._lock:
            entry = self._by_name.get(use.name)
            is_same = entry is not None and entry.generation == use.generation
            if entry is not None and is_same and entry.state is AdapterState.READY:
                return
        message = "adapter: it was unloaded"
        raise RequestError(Reason.UNKNOWN_ADAPTER, message, field="adapter")

    def install(self, adapter: AdapterInfo, packed: PackedAdapter) -> AdapterInfo | None:
        """Put an adapter into its slot; None where its load was given up meanwhile.

        Raises:
            ModelError: It cannot be put there; its slot is empty.
        """
        with self._lock:
            if not self._is_in(adapter, AdapterState.LOADING) or self._tables is None:
                return None
            try:
                self._tables.set(adapter.slot, packed)
            except Exception as error:
                # Some layers may have it: the slot goes to another adapter.
                self._tables.set(adapter.slot, None)
                message = f"cannot be put into its slot: {type(error).__name__}: {error}"
                raise ModelError(message) from error
            entry = self._by_name[adapter.name]
            entry.state = AdapterState.READY
            entry.rank, entry.num_bytes = packed.rank, packed.num_bytes
            return entry.info()

    def end_unload(self, adapter: AdapterInfo) -> Sequence[int]:
        """Empty the slot of an adapter, unless requests use it: these are returned."""
        with self._lock:
            if not self._is_in(adapter, AdapterState.UNLOADING) or self._tables is None:
                return ()
            users = self._users(adapter.slot)
            if not users:
                self._empty(adapter)
            return users

    def make_room(self) -> bool:
        """Free a slot, unless one is free, from the adapter that was named least recently.

        Only an adapter that was loaded on demand, and that nothing uses, makes room.

        Returns:
            Whether a slot is free.
        """
        with self._lock:
            if self._free or self._tables is None:
                return bool(self._free)
            for entry in sorted(self._by_name.values(), key=lambda entry: entry.last_use):
                if not self._is_idle(entry):
                    continue
                self._empty(entry.info())
                return True
        return False

    def _is_idle(self, entry: _Entry) -> bool:
        # One that nothing has named yet was loaded for a request that is about to.
        is_old = entry.is_on_demand and entry.state is AdapterState.READY and entry.last_use > 0
        is_held = entry.use is not None and entry.use() is not None
        return is_old and not is_held and not self._users(entry.slot)

    def _empty(self, adapter: AdapterInfo) -> None:
        assert self._tables is not None, adapter
        self._tables.set(adapter.slot, None)
        self._on_emptied(adapter.slot)
        self._release(adapter)

    def end_unloads(self) -> None:
        """End what was begun, where no request is left."""
        for adapter in self.list():
            self.end_unload(adapter)

    def unload(self, name: str) -> bool:
        """Refuse new requests for an adapter, and forget it unless a request uses it.

        Returns:
            Whether it is forgotten; False: call again when its requests have ended.

        Raises:
            RequestError: There is none of that name.
        """
        return not self.end_unload(self.begin_unload(name))

    def load(self, name: str, folder: str | Path, tenants: Iterable[str] = ()) -> AdapterInfo:
        """Load an adapter that PEFT has saved; requests may name it from now on.

        Args:
            name: New.
            folder: With `adapter_config.json` and `adapter_model.safetensors`.
            tenants: Those that may use it; none is all.

        Raises:
            RequestError: The name is malformed or in use, or there is no room.
            ModelError: The adapter cannot be loaded.
        """
        adapter = self.begin_load(name, Path(folder), tenants)
        try:
            loaded = self.install(adapter, self.read(adapter))
        finally:
            self.drop(adapter)
        assert loaded is not None, "nothing else ends the load"
        return loaded

    def load_all(self, on_bad_adapter: OnBadAdapter | None) -> None:
        """Load those of the settings.

        Raises:
            ModelError: One cannot be loaded, and `on_bad_adapter` is None.
        """
        for name, folder in _pairs(self._config.adapters):
            try:
                self.load(name, expanded(folder), self.tenants_of(name))
            except (ModelError, RequestError) as error:
                failure = ModelError(f"adapter {name}: {error}")
                if on_bad_adapter is None:
                    raise failure from None
                on_bad_adapter(name, failure)

    def _is_in(self, adapter: AdapterInfo, state: AdapterState) -> bool:
        entry = self._by_name.get(adapter.name)
        return entry is not None and entry.generation == adapter.generation and entry.state is state

    def _release(self, adapter: AdapterInfo) -> None:
        del self._by_name[adapter.name]
        self._free.append(adapter.slot)


def _serves(entry: _Entry, tenant: str) -> bool:
    return not entry.tenants or tenant in entry.tenants


def _pairs(assignments: Sequence[str] | None) -> list[tuple[str, str]]:
    """Split settings `NAME=VALUE`."""
    split = (text.partition("=") for text in assignments or ())
    return [(name, value) for name, _, value in split]


def _check_name(name: str, field_name: str) -> None:
    if not ADAPTER_NAME.fullmatch(name):
        expected = "1 to 64 letters, digits, points, lines and underscores, a letter or digit first"
        message = f"{field_name}: expected {expected}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field_name)


def _is_inside(path: Path, root: Path) -> bool:
    """Return whether a path leads into a folder; one that leads nowhere does not.

    Raises:
        RequestError: It cannot be followed, such as a link to itself.
    """
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):
        message = "folder: expected a folder, got a path that leads nowhere"
        raise RequestError(Reason.BAD_PARAMETER, message, field="folder") from None
