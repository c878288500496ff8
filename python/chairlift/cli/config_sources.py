"""Sources of settings: a flag, else the environment, else a TOML file, else the default.

An unknown name is an error in each of the three: else a misspelt setting would be ignored.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import BaseModel

from chairlift.api.config import EngineConfig, check_instruction_set
from chairlift.api.errors import ConfigError
from chairlift.api.logs import LogConfig
from chairlift.replay.fleet_options import FleetOptions
from chairlift.replay.options import ReplayOptions
from chairlift.server.config import ServerConfig

PREFIX: Final = "CHAIRLIFT_"

OTHER_VARIABLES: Final = frozenset(
    PREFIX + name
    for name in ("CONFIG", "CPU", "SUPERVISE", "SUPERVISOR_SOCKET", "TARGET", "TLS_CA", "TOKEN")
) | {"LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"}
"""Variables that are no field of a configuration class."""

# What Kubernetes sets in every pod for a service whose name begins with "chairlift".
_OF_KUBERNETES: Final = re.compile(
    r"CHAIRLIFT_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_LINK: Final = re.compile(r"(tcp|udp|sctp)://\S+")

_IN_FILE: Final = "chairlift.config_file"


def option_name(field: str) -> str:
    """Return the name of a setting's option: `batch_window_s` is `batch-window`."""
    # An option that may be repeated names one of the values.
    return {"adapters": "adapter", "adapter_tenants": "adapter-tenant"}.get(
        field, field.removesuffix("_s").replace("_", "-")
    )


def variable_name(field: str) -> str:
    """Return the name of its environment variable: `CHAIRLIFT_BATCH_WINDOW`."""
    return PREFIX + option_name(field).replace("-", "_").upper()


def known_variables() -> set[str]:
    """Return all variables that some command reads."""
    replay: tuple[type[BaseModel], ...] = (ReplayOptions, FleetOptions)
    configs: tuple[type[BaseModel], ...] = (EngineConfig, ServerConfig, LogConfig, *replay)
    settings = {variable_name(field) for config in configs for field in config.model_fields}
    return settings | OTHER_VARIABLES


def check_environment() -> None:
    """Check that every variable of this program is known, and the value of the kernels' own.

    Raises:
        ConfigError: One is unknown; the message names the nearest known one.
    """
    check_instruction_set()
    known = known_variables()
    for name, value in sorted(os.environ.items()):
        is_ours = name.startswith(PREFIX) and not _OF_KUBERNETES.fullmatch(name)
        is_link = name.endswith("_PORT") and _LINK.fullmatch(value) is not None
        if is_ours and not is_link and name not in known:
            message = f"environment: no such variable: {name}{nearest(name, known)}"
            raise ConfigError(message)


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make a TOML file's entries the defaults of the options; names are those of the options.

    Raises:
        ConfigError: The file cannot be read, names an option twice or an unknown one, or has a
            value of another type.
    """
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
        entries = tomllib.loads(text)
    except (OSError, ValueError) as error:
        message = f"cannot read {path}: {error}"
        raise ConfigError(message) from None
    parameters = {
        option_name(parameter.name): parameter
        for parameter in context.command.params
        if parameter.name not in _NOT_IN_FILE
    }
    defaults: dict[str, object] = {}
    for key, value in entries.items():
        name = key.replace("_", "-")
        place = f"{path}:{_line_of(key, text)}"
        if name not in parameters:
            message = f"{place}: no such option: {key}{nearest(name, parameters)}"
            raise ConfigError(message)
        parameter = parameters[name]
        field = parameter.name
        is_switch = bool(getattr(parameter, "is_flag", False))
        if field in defaults:
            message = f"{place}: {key} is there twice"
            raise ConfigError(message)
        where = f"{place}: {key}"
        if getattr(parameter, "multiple", False):
            values = value if isinstance(value, list) else [value]
            defaults[field] = [_plain(entry, is_switch, where) for entry in values]
        else:
            defaults[field] = _plain(value, is_switch, where)
        context.meta[f"{_IN_FILE}.{field}"] = place
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


_NOT_IN_FILE: Final = frozenset({"config", "print_config", "help"})


def _plain(value: object, is_switch: bool, where: str) -> object:
    """Return a value as text, as it would be typed: the option's own parser checks it."""
    if is_switch and isinstance(value, bool):
        return value
    if isinstance(value, str | int | float):
        return str(value)
    message = f"{where}: expected a text, a number or a boolean, got {type(value).__name__}"
    raise ConfigError(message)


def _line_of(key: str, text: str) -> int:
    entry = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if entry.match(line)), 0)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name; empty if no known name is similar."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; the nearest is {matches[0]}" if matches else ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the command that runs."""

    name: str
    """Name of its option."""
    value: Any
    """The validated value; None if the server decides."""
    source: str
    """A flag, a variable, a line of a file, or empty for the default."""

    def toml(self) -> str:
        """Return a line of a TOML file that sets it, with its source."""
        source = self.source or "default"
        if self.value is None:
            return f"# {self.name} is not set  # {source}"
        return f"{self.name} = {_toml(self.value)}  # {source}"


def settings_of(context: typer.Context, configs: Iterable[BaseModel]) -> Iterator[Setting]:
    """Yield the settings that the command takes, with the values of the configurations."""
    taken = {parameter.name: parameter for parameter in context.command.params}
    for config in configs:
        for field in type(config).model_fields:
            if field in taken:
                value = getattr(config, field)
                if field.endswith("_s") and value is not None:
                    value = f"{value:g}s"
                yield Setting(option_name(field), value, _source(context, taken[field]))


def place_of(context: typer.Context, parameter: Any) -> str:  # noqa: ANN401, of the parser
    """Return the source of a setting: its flag, its variable, or file, line and key.

    Args:
        context: Context of the command.
        parameter: Parameter of the command; a default is named by its flag.
    """
    source, field = context.get_parameter_source(parameter.name), parameter.name
    kind = "" if source is None else source.name
    if kind == "ENVIRONMENT":
        return str(parameter.envvar)
    if kind == "DEFAULT_MAP":
        return f"{context.meta.get(f'{_IN_FILE}.{field}', '')}: {option_name(field)}"
    is_option = parameter.param_type_name == "option"
    return str(max(parameter.opts, key=len)) if is_option else option_name(field)


def _source(context: typer.Context, parameter: Any) -> str:  # noqa: ANN401, of the parser
    source, field = context.get_parameter_source(parameter.name), parameter.name
    is_option = parameter.param_type_name == "option"
    sources: Mapping[str, str] = {
        "COMMANDLINE": f"--{option_name(field)}" if is_option else "argument",
        "ENVIRONMENT": parameter.envvar or "",
        "DEFAULT_MAP": context.meta.get(f"{_IN_FILE}.{field}", ""),
    }
    return sources.get(source.name, "") if source is not None else ""


def _toml(value: object) -> str:
    return json.dumps(value.value if isinstance(value, StrEnum) else value)
