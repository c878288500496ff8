"""Imports torch without the parts that no server uses.

`import torch` runs some 1,200 modules, a third of them for compiling, exporting, training and
quantizing models, which take two fifths of its time. `import_torch` puts these parts off: each
becomes an empty module, and the first use of one runs them all, in the order in which torch asked
for them (they import each other, and another order fails).

This is for a process of our own: with these parts torch registers, for instance, the functions of
its meta device, which a program that embeds the engine may need without naming one of the parts.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from threading import RLock
from types import ModuleType
from typing import Final

TRIED_VERSIONS: Final = ("2.15.",)
"""Versions of torch whose parts are known; another one is imported whole."""

PARTS: Final = frozenset(
    f"torch.{name}"
    for name in (
        *("_higher_order_ops", "_meta_registrations", "_native", "ao", "compiler"),
        *("distributed._meta_registrations", "distributions", "export", "func"),
        *("masked", "nn.intrinsic", "nn.qat", "nn.quantizable"),
        *("nn.quantized", "optim", "quantization"),
    )
)
"""Modules that torch imports, and that nothing else it imports needs at once."""

_FUNCTIONS: Final = {"torch._higher_order_ops": ("cond", "while_loop"), "torch.func": ("vmap",)}
"""What torch takes out of a part into its own namespace: functions that call the real ones."""


def import_torch() -> None:
    """Import torch; the parts that a server does not use run when they are first used.

    Nothing is put off if torch is imported already, or is a version that was not tried.

    Raises:
        ImportError: There is no torch.
    """
    if "torch" not in sys.modules and _is_tried():
        sys.meta_path.insert(0, _finder)
    try:
        import torch  # noqa: F401, for all that follows
    except BaseException:
        _finder.remove()
        raise
    _finder.has_torch = True


def parts_put_off() -> list[str]:
    """Return the names of the parts that have not run, in the order of their import."""
    return [part.__name__ for part in _queue.waiting]


def _is_tried() -> bool:
    try:
        return version("torch").startswith(TRIED_VERSIONS)
    except PackageNotFoundError:
        return False


class _Queue:
    """The parts that have not run; one thread runs them, others wait for it."""

    def __init__(self) -> None:
        self.waiting: list[_Part] = []
        self._lock = RLock()
        self._is_running = False

    def run(self, part: "_Part | None" = None) -> None:
        """Run all parts; a part that another one needs runs alone, before its turn."""
        with self._lock:
            if not self._is_running:
                self._is_running = True
                _finder.remove()
                while self.waiting:
                    self._run(self.waiting[0])
                self._is_running = False
            elif part in self.waiting:
                self._run(part)

    def _run(self, part: "_Part") -> None:
        self.waiting.remove(part)
        part.__class__ = ModuleType  # type: ignore[assignment]
        part.put_off_loader.exec_module(part)


class _Part(ModuleType):
    """A module that has not run."""

    def __init__(self, name: str, loader: Loader) -> None:
        super().__init__(name)
        self.put_off_loader = loader

    def __getattr__(self, name: str) -> object:
        """Return what the module defines; this runs it, but for torch's own `_FUNCTIONS`."""
        if name.startswith("__"):
            # The import system asks any module for these, whether it has them or not.
            raise AttributeError(name)
        if name in _FUNCTIONS.get(self.__name__, ()) and not _finder.has_torch:
            return self._later(name)
        _queue.run(self)
        return getattr(self, name)

    def _later(self, name: str) -> Callable[..., object]:
        """Return a function that runs the module when it is called."""

        def function(*args: object, **named: object) -> object:
            result: object = getattr(self, name)(*args, **named)
            return result

        return function


class _PutOff(Loader):
    """Makes a module now; its code runs later."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module without contents."""
        return _Part(spec.name, self._loader)

    def exec_module(self, module: ModuleType) -> None:
        """Note that the module has not run."""
        assert isinstance(module, _Part), "made by `create_module`"
        _queue.waiting.append(module)


class _AfterParts(Loader):
    """Runs the parts before a module that may need them."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._has_run = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Run the parts; return the module if one of them has imported it."""
        _queue.run()
        module = sys.modules.get(spec.name)
        self._has_run = module is not None
        return module or self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module if no part has."""
        if not self._has_run:
            self._loader.exec_module(module)


class _Finder(MetaPathFinder):
    """Finds `PARTS` where Python would, and puts them off.

    Once torch is there, the first import of anything else of it runs the parts.
    """

    has_torch = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return how to import a module of torch; None leaves it to Python."""
        if not fullname.startswith("torch.") or not (self.has_torch or fullname in PARTS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = (_AfterParts if self.has_torch else _PutOff)(spec.loader)
        return spec

    def remove(self) -> None:
        """Leave the imports to Python."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


_finder = _Finder()
_queue = _Queue()
