"""One option per setting of a configuration class, defined by that class alone.

The option of `max_num_seqs` is `--max-num-seqs` and `CHAIRLIFT_MAX_NUM_SEQS`; seconds and bytes
have units: `batch_window_s` is `--batch-window 50ms`, `kv_cache_memory` takes `2GiB`.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from chairlift.api.config import EngineConfig
from chairlift.cli.config_sources import check_environment, option_name, variable_name
from chairlift.cli.values import duration, size

Command = Callable[..., None]

SIZES = frozenset(
    {
        *("kv_cache_memory", "swap_memory", "prefix_store_bytes"),
        *("max_receive_bytes", "max_text_bytes"),
    }
)
"""Settings in bytes."""

ENGINE_SETTINGS = tuple(name for name in EngineConfig.model_fields if name != "block_size")
"""Settings with an option, in the order of --help. `block_size` has one value so far and none."""

ADAPTER_SETTINGS = frozenset(
    {"adapters", "adapter_tenants", "adapter_folder", "max_adapters", "max_adapter_rank"}
)
"""Settings for commands whose requests can name an adapter."""

PREFIX_STORE_SETTINGS = frozenset(
    {"prefix_store", "prefix_store_bytes", "prefix_store_key", "prefix_store_uses"}
)
"""Settings for commands that leave it to the user whether there is a prefix cache."""

ANSWER_SETTINGS = (
    *("dtype", "quantize", "kv_cache_dtype", "device"),
    *("max_model_len", "max_text_bytes", "default_max_tokens"),
)
"""Settings that an answer depends on: a job from a file goes on with the same ones alone."""

DEVICE_SETTINGS = ("max_num_seqs", "max_num_batched_tokens", "prefix_cache")
"""Settings whose defaults depend on the device or the model: they are passed on only if set."""


def engine_options(
    *,
    only: frozenset[str] = frozenset(ENGINE_SETTINGS),
    without: frozenset[str] = frozenset(),
    defaults: Mapping[str, object] | None = None,
) -> Callable[[Command], Command]:
    """Decorate a command that takes `settings: dict[str, Any]`, the values for `EngineConfig`.

    Args:
        only: Settings that apply to this command.
        without: Settings that this command sets itself.
        defaults: Settings whose default differs from that of `EngineConfig`.
    """
    if "prefix_cache" in without:
        without |= PREFIX_STORE_SETTINGS
    names = [name for name in ENGINE_SETTINGS if name in only - without]
    values = {**dict.fromkeys(DEVICE_SETTINGS), **(defaults or {})}
    return config_options(EngineConfig, names, into="settings", panel="Engine", defaults=values)


def config_options(
    config: type[BaseModel],
    names: Iterable[str],
    *,
    into: str,
    panel: str,
    defaults: Mapping[str, object] | None = None,
) -> Callable[[Command], Command]:
    """Decorate a command that takes a dict of settings.

    Args:
        config: The class that defines the settings, their types, defaults and help.
        names: The settings that become options, in the order of --help.
        into: Parameter of the command that takes the dict; unset ones (None) are left out.
        panel: Heading in --help.
        defaults: Defaults that differ from those of `config`.
    """
    settings = {name: config.model_fields[name] for name in names}
    added = [
        _parameter(name, field, (defaults or {}).get(name, field.default), panel)
        for name, field in settings.items()
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_settings(*args: object, **options: object) -> None:
            check_environment()
            given = {name: options.pop(name) for name in settings}
            options[into] = {name: value for name, value in given.items() if value is not None}
            command(*args, **options)

        signature = inspect.signature(command)
        kept = [p for p in signature.parameters.values() if p.name != into]
        with_settings.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        with_settings.__annotations__ = {p.name: p.annotation for p in [*kept, *added]}
        return with_settings

    return decorate


def _parameter(
    name: str,
    field: FieldInfo,
    default: Any,  # noqa: ANN401, of whatever type the setting has
    panel: str,
) -> inspect.Parameter:
    # Lines are broken again at the width of the terminal.
    text = " ".join((field.description or "").split())
    flag = option_name(name)
    kind: Any = list[str] if _is_list(field) else _plain_type(field)
    make_option: Callable[..., Any] = typer.Option
    names = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
    if name.endswith("_s"):
        make_option = duration
        default = None if default is None else f"{default:g}s"
    elif name in SIZES:
        make_option = size
    elif _is_list(field):
        metavar = "NAME=VALUE" if name.startswith("adapter") else "NAME"
        metavar = "[TENANT=]ADDRESS" if name == "kv_events" else metavar
        make_option = functools.partial(typer.Option, metavar=metavar)
    elif name.endswith("_format") or name == "device_model":
        # All values in one word would be wider than a narrow terminal.
        text = f"{text} One of {', '.join(kind)}."
        metavar = "FORMAT" if name.endswith("_format") else "NAME"
        make_option = functools.partial(typer.Option, metavar=metavar)
    option = make_option(
        names,
        help=text,
        envvar=variable_name(name),
        show_envvar=False,
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if default is not None else kind | None, option],
    )


def _is_list(field: FieldInfo) -> bool:
    """Return whether a setting has several values, so that its option may be repeated."""
    parts = (field.annotation, *get_args(field.annotation))
    kinds = [part for kind in parts for part in (kind, *get_args(kind)[:1])]
    return any(get_origin(kind) is tuple for kind in kinds)


def _plain_type(field: FieldInfo) -> type:
    """Return the type to parse: int of `Annotated[int, ...] | None`, the enum of an enum."""
    kind: Any = field.annotation
    if isinstance(kind, types.UnionType) or get_args(kind):
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
        kind = get_args(kind)[0] if get_args(kind) else kind
    assert kind in (int, float, bool, str) or issubclass(kind, StrEnum), kind
    return kind  # type: ignore[no-any-return]
