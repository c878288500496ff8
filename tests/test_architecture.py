"""The house as ARCHITECTURE.md draws it: one-way layers, a light start, small files."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax import forget, nodes_of, paths_below

pytestmark = pytest.mark.always

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "chairlift"

LEAVES = {"_core", "api"}
FILES = LEAVES | {"checkpoints"}
MODEL = FILES | {"kernels", "attention", "model"}
ENGINE = MODEL | {"core", "text", "engine"}
MAY_IMPORT = {
    "__init__": {"api", "engine"},
    "__main__": {"cli"},
    "api": LEAVES,
    "core": LEAVES | {"core"},
    "kernels": LEAVES | {"kernels"},
    "attention": LEAVES | {"attention", "kernels"},
    "checkpoints": FILES,
    "text": FILES | {"text"},
    "model": MODEL,
    "engine": ENGINE,
    "v1": {"v1"},
    "client": {"api", "client", "v1"},
    # A replay runs the scheduler alone: it knows no engine, no model and no torch.
    "replay": LEAVES | {"core", "replay"},
    "timeline": LEAVES | {"core", "replay", "timeline"},
    "server": LEAVES | {"core", "engine", "model", "replay", "server", "text", "v1"},
    "demo": set(),
    "bench": ENGINE | {"bench", "replay", "timeline"},
    # Nothing imports it: a server without Ray never loads it.
    "ray": ENGINE | {"cli", "client", "ray", "server", "v1"},
    "cli": ENGINE | {"bench", "cli", "client", "demo", "replay", "server", "timeline", "v1"},
}
"""What each part may import: `cli -> server -> engine -> model -> checkpoints -> api`."""

MAX_FILE_LINES = 450
MAX_FUNCTION_STATEMENTS = 40
LONG_FILES: dict[str, str] = {
    "python/chairlift/api/types.py": "the values of the engine, one beside the other",
    "rust/chairlift-kernels/tests/kernels/sampling.rs": "one reference, and every law against it",
    "rust/chairlift-kernels/tests/kernels/paged_attention.rs": "one reference, and every edge",
}
"""Files over the limit: path from the root to the reason."""
LONG_FUNCTIONS: dict[str, str] = {}
"""Functions over the limit: `path:name` to the reason."""

GENERATED = {
    PACKAGE / "v1",
    PACKAGE / "server" / "protocols" / "stubs",
    PACKAGE / "timeline" / "stubs",
}
PYTHON_FILES = sorted(p for p in PACKAGE.rglob("*.py") if not GENERATED & set(p.parents))
ALL_SOURCES = [
    *PYTHON_FILES,
    *(ROOT / "tools").rglob("*.py"),
    *(ROOT / "tests").rglob("*.py"),
    *(ROOT / "rust").rglob("*.rs"),
    *(ROOT / "cuda").rglob("*.cu*"),
]


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Free what all tests of the file share."""
    yield
    forget()


def part_of(path: Path) -> str:
    """First component below the package: a folder, or a module of its own."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every absolute import anywhere in a file, lazy ones included, with its line."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            # `from chairlift import _core` names a module below the package.
            names = (f"chairlift.{alias.name}" for alias in node.names)
            yield from ((n, node.lineno) for n in (names if module == "chairlift" else [module]))


def top_level_names() -> set[str]:
    """Modules and folders; any other x of `from chairlift import x` is the package's own."""
    return {p.name.removesuffix(".py") for p in PACKAGE.iterdir()} | {"_core"}


def test_layers_import_one_way() -> None:
    known = top_level_names()
    wrong = []
    for path in PYTHON_FILES:
        allowed = MAY_IMPORT[part_of(path)]
        for module, line in imports_of(path):
            if module.split(".")[0] != "chairlift":
                continue
            target = module.split(".")[1] if "." in module else "chairlift"
            target = target if target in known else "chairlift"
            if target not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def module_of(path: Path) -> str:
    """Dotted name of a file of the package."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


CORE_MODULE = {"chairlift._core"}
"""The module in Rust, which imports nothing."""


@functools.cache
def module_graph() -> dict[str, set[str]]:
    """Which modules each module imports, lazily and for types included."""
    names = {module_of(path).removesuffix(".__init__") for path in PYTHON_FILES}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path in PYTHON_FILES:
        own = module_of(path).removesuffix(".__init__")
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    graph[own].add(inner if inner in names | CORE_MODULE else node.module)
            elif isinstance(node, ast.Import):
                graph[own] |= {alias.name for alias in node.names}
    return {name: imports & names for name, imports in graph.items()}


def folder_graph() -> dict[str, set[str]]:
    """Which folders import from which, lazily and for types included.

    The modules of a folder are one node. Its `__init__` is another, above all that is in it.
    """
    modules = module_graph()

    def node_of(name: str) -> str:
        has_modules = any(other.startswith(f"{name}.") for other in modules)
        return f"{name}.__init__" if has_modules else name.rpartition(".")[0]

    graph: dict[str, set[str]] = {node_of(name): set() for name in modules}
    for name, imports in modules.items():
        graph[node_of(name)] |= {node_of(other) for other in imports} - {node_of(name)}
    return graph


def sibling_graph(folder: str) -> dict[str, set[str]]:
    """Which modules and folders of one folder import which, with all that is below each."""
    prefix = f"{folder}."
    graph: dict[str, set[str]] = {}
    for name, imports in module_graph().items():
        if name.startswith(prefix):
            child = name.removeprefix(prefix).partition(".")[0]
            others = {
                i.removeprefix(prefix).partition(".")[0] for i in imports if i.startswith(prefix)
            }
            graph.setdefault(child, set()).update(others - {child})
    return graph


def in_circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle, and those that lead to one."""
    left = graph
    # What imports no module that is left is in no circle.
    while free := {name for name, imports in left.items() if not imports & left.keys()}:
        left = {name: imports for name, imports in left.items() if name not in free}
    return sorted(left)


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert not in_circles(module_graph())


def test_no_folders_import_one_another_in_a_circle() -> None:
    graph = folder_graph()
    assert len(graph) > 30
    circles = in_circles(graph)
    assert not circles, {name: graph[name] & {*circles} for name in circles}


FOLDERS = sorted(
    {module_of(path).removesuffix(".__init__").rpartition(".")[0] for path in PYTHON_FILES} - {""}
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_parts_of_a_folder_import_one_another_in_a_circle(folder: str) -> None:
    graph = sibling_graph(folder)
    assert graph
    assert not in_circles(graph), {name: graph[name] for name in in_circles(graph)}


def test_the_layers_are_in_order() -> None:
    order = ["cli", "server", "engine", "model", "checkpoints", "api"]
    for at, upper in enumerate(order):
        for lower in order[at + 1 :]:
            assert upper not in MAY_IMPORT[lower], f"{lower} may import {upper}"
    assert "model" not in MAY_IMPORT["text"]
    assert "text" not in MAY_IMPORT["checkpoints"] | MAY_IMPORT["model"]


def rust_graph(sources: Path) -> dict[str, set[str]]:
    """Which top-level modules of a crate each of them uses, tests left out."""
    names = {path.stem for path in sources.glob("*.rs")} - {"lib", "main"}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path in sources.rglob("*.rs"):
        own = path.relative_to(sources).with_suffix("").parts[0]
        if own not in names or path.stem == "tests":
            continue
        code, *_ = path.read_text(encoding="utf-8").split("#[cfg(test)]\nmod tests")
        code = re.sub(r"//[^\n]*", "", code)
        used = set(re.findall(r"\bcrate::(\w+)", code))
        for group in re.findall(r"\bcrate::\{(.*?)\};", code, re.DOTALL):
            # Only what stands at the outermost level of the braces is a module of the crate.
            while group != (flat := re.sub(r"\{[^{}]*\}", "", group)):
                group = flat
            used |= set(re.findall(r"(?:^|,)\s*(\w+)", group))
        graph[own] |= used & names - {own}
    return graph


@pytest.mark.parametrize(
    "crate",
    [
        "core",
        "kernels",
        "delivery",
        "prefix-store",
        "fleet",
        "grammar",
        "python",
        "ranks",
        "router",
        "simulator",
        "tensor",
    ],
)
def test_no_modules_of_a_crate_use_one_another_in_a_circle(crate: str) -> None:
    graph = rust_graph(ROOT / "rust" / f"chairlift-{crate}" / "src")
    assert any(graph.values())
    assert not in_circles(graph), {name: graph[name] for name in in_circles(graph)}


def test_only_the_engine_and_below_import_torch() -> None:
    below = {"kernels", "attention", "checkpoints", "model", "engine", "bench"}
    # The scheduler and the kernels take tensors, and a benchmark is a user of theirs alone.
    exempt = {PACKAGE / "cli" / "bench" / name for name in ("scheduler.py", "kernels.py")} | {
        PACKAGE / "core" / "events.py"
    }
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in PYTHON_FILES
        if part_of(path) not in below and path not in exempt
        for module, line in imports_of(path)
        if module.split(".")[0] == "torch"
    ]
    assert not wrong, wrong


def test_proto_types_stay_at_the_door() -> None:
    doors = {"server", "client", "v1", "cli", "ray"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in PYTHON_FILES
        if part_of(path) not in doors
        for module, line in imports_of(path)
        if module.startswith(("chairlift.v1", "grpc", "google.protobuf"))
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_that_serves_imports_transformers_but_where_it_is_chosen() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in PYTHON_FILES
        for module, line in imports_of(path)
        if module.split(".")[0] == "transformers" and path.parent.name != "generic"
    ]
    assert not wrong, wrong


@pytest.mark.parametrize(
    "module",
    [
        "chairlift",
        "chairlift.v1",
        "chairlift.client",
        "chairlift.cli",
        "chairlift.checkpoints.files.folder",
    ],
)
def test_import_loads_neither_torch_nor_a_server(module: str) -> None:
    loaded = loaded_by(module)
    heavy = {
        "torch",
        "transformers",
        "tokenizers",
        "chairlift.server.app.server",
        "chairlift.engine",
    }
    assert not loaded & heavy, loaded & heavy


def test_a_job_for_a_server_loads_no_torch() -> None:
    assert not loaded_by("chairlift.cli.batch.remote") & {"torch", "chairlift.engine.engine"}


def loaded_by(module: str) -> set[str]:
    """Return the modules that are loaded after a module was imported."""
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return set(run.stdout.split())


def length_of(path: Path) -> int:
    """Lines of a file, without the unit tests at the end of a Rust module."""
    code, _, _ = path.read_text(encoding="utf-8").partition("\n#[cfg(test)]\nmod ")
    return len(code.splitlines())


def test_no_file_is_long() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in ALL_SOURCES
        if (lines := length_of(path)) > MAX_FILE_LINES
    }
    assert long.keys() <= LONG_FILES.keys(), long


def test_no_python_function_is_long() -> None:
    long = {}
    for path in PYTHON_FILES:
        for node in nodes_of(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            # A docstring explains; it is not what makes a function hard to read.
            num = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
            num -= ast.get_docstring(node) is not None
            if num > MAX_FUNCTION_STATEMENTS:
                long[f"{path.relative_to(ROOT)}:{node.name}"] = num
    assert long.keys() <= LONG_FUNCTIONS.keys(), long


def test_calls_name_arguments_and_splat_no_tuples() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{argument.lineno}"
        for path in PYTHON_FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        for argument in node.args
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List)
    ]
    assert not found, found


def test_the_page_about_the_house_names_files_and_symbols_that_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 150
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ALL_SOURCES)
    sources += "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "proto").rglob("*.proto"))
    files = [str(path) for path in paths_below(ROOT, but={".tools", ".venv", "target"})]
    for word in re.findall(r"`([\w./]+)`", page):
        if "/" in word or re.search(r"\.(py|rs|cuh|pyi)$", word):
            assert any(file.endswith(word.rstrip("/")) for file in files), word
        elif word.isidentifier() or re.fullmatch(r"[A-Z]\w+\.\w+", word):
            assert word.rpartition(".")[2] in sources, word


def test_every_part_of_the_package_has_a_layer() -> None:
    assert {part_of(path) for path in PYTHON_FILES} <= MAY_IMPORT.keys()
