"""Which models are here, and what they are, from the headers of their files alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from chairlift.api.errors import ModelError
from chairlift.api.home import name_hub_cache
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.checkpoints.files.fields import one_line, read_json
from chairlift.checkpoints.files.folder import (
    CONFIG,
    DEMO,
    GGUF,
    PACKAGES,
    hub_names,
    is_gguf,
    models_of,
    parts_of,
    resolve_model,
)
from chairlift.checkpoints.gguf.reader import GgufHeader
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.families import is_encoder, load_encoder_config

MAX_MODELS: Final = 1000
"""Models of a folder or a cache that are listed, so that a wrong folder ends soon."""
_MAX_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A model that is here."""

    name: str
    """What `resolve_model` takes."""
    path: Path
    """Its folder, or its GGUF file."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the headers of a model say; a string is empty where they cannot be read."""

    weight_bytes: int
    """Size of all tensors; of the files where their headers cannot be read."""
    format: str
    """The type that most of these bytes have, `bf16` or `Q4_K`, or how the model is quantized."""
    family: str
    """The architecture as the file calls it."""
    unsupported_reason: str
    """Why it cannot be served; empty if it can."""


def packaged_models() -> Iterator[ModelListing]:
    """Return the demo and the models of installed packages."""
    for name in (DEMO, *PACKAGES):
        try:
            yield ModelListing(name, resolve_model(name))
        except ModelError:
            continue  # not installed


def cached_models() -> Iterator[ModelListing]:
    """Return the models of the Hub cache, in the revision that the name of a repository means."""
    try:
        name_hub_cache()
    except OSError:
        return
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, OSError, ValueError):
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        main = [r for r in repository.revisions if "main" in r.refs]
        if repository.repo_type != "model" or not main:
            continue
        snapshot = main[0].snapshot_path
        files = [path.relative_to(snapshot).as_posix() for path in _gguf_files(snapshot.rglob)]
        if (snapshot / CONFIG).is_file():
            yield ModelListing(repository.repo_id, snapshot)
        models = models_of(files)
        for name, file in zip(hub_names(repository.repo_id, models), models, strict=True):
            yield ModelListing(name, snapshot / file)


def models_in(folder: Path) -> Iterator[ModelListing]:
    """Return a folder if it is a model, its GGUF files, and the models of the folders in it.

    Raises:
        ModelError: It is no folder, or cannot be read.
    """
    try:
        inside = sorted(islice(folder.iterdir(), MAX_MODELS))
    except OSError as error:
        message = f"{folder}: {(error.strerror or 'cannot be read').lower()}"
        raise ModelError(message) from error
    for place in (folder, *inside):
        try:
            if place.is_dir():
                yield from _models_of_folder(place)
        except OSError:
            continue


def _models_of_folder(folder: Path) -> Iterator[ModelListing]:
    if (folder / CONFIG).is_file():
        yield ModelListing(_local_name(folder), folder)
    files = {path.name: path for path in _gguf_files(folder.glob)}
    for name in models_of(files):
        yield ModelListing(_local_name(files[name]), files[name])


def _gguf_files(glob: Callable[[str], Iterable[Path]]) -> list[Path]:
    return list(islice((path for path in glob(f"*{GGUF}") if not path.is_dir()), MAX_MODELS))


def _local_name(path: Path) -> str:
    """Return a path as a name that is no other model's."""
    name = str(path)
    return f"./{name}" if name in {DEMO, *PACKAGES} else name


def describe(path: Path) -> Description:
    """Read the headers of a model; whatever is wrong with it is why it is unsupported."""
    unsupported_reason, scheme, names, tensors = "", None, None, Counter[str]()
    try:
        if is_encoder(path):
            family = load_encoder_config(path).architecture
        else:
            config = ModelConfig.load(path)
            family, scheme, names = config.architecture, config.scheme, config.names
    except Exception as error:  # one model does not keep others from the list
        unsupported_reason, family = _reason(path, error), _named_family(path)
    try:
        with ExitStack() as files:
            for tensor in Checkpoint.open(path, files, scheme, names).tensors.values():
                tensors[tensor.dtype] += tensor.num_bytes
    except Exception as error:
        unsupported_reason = unsupported_reason or _reason(path, error)
    name = one_line(max(tensors, key=tensors.__getitem__, default=""))
    if scheme is not None:
        name = scheme.method
    return Description(
        weight_bytes=tensors.total() or _file_bytes(path),
        format=name.lower() if name in {"F32", "F16", "BF16", "F64"} else name,
        family=family,
        unsupported_reason=unsupported_reason,
    )


def _reason(path: Path, error: Exception) -> str:
    """Return an error as one line, without the folder that every row would repeat."""
    text = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
    folder = path.parent if is_gguf(path) else path
    return one_line(text.replace(f"{folder}/", ""), _MAX_SHOWN)


def _named_family(path: Path) -> str:
    """Return the architecture of a model that is not supported, as its file calls it."""
    try:
        if is_gguf(path):
            with ExitStack() as files:
                name = GgufHeader.open(path, files).metadata.get("general.architecture")
        else:
            names = read_json(path / CONFIG).get("architectures")
            name = names[0] if isinstance(names, list) and names else names
    except Exception:
        return ""
    return one_line(name) if isinstance(name, str) else ""


def _file_bytes(path: Path) -> int:
    """Return the bytes of the files that hold the weights."""
    files = parts_of(path) if is_gguf(path) else path.glob("*.safetensors")
    try:
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
