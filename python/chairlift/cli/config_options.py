"""One option per setting of a configuration class, defined by that class alone.

The option of `max_num_seqs` is `--max-num-seqs` and `CHAIRLIFT_MAX_NUM_SEQS`; seconds and bytes
have units: `batch_window_s` is `--batch-window 50ms`, `kv_cache_memory` takes `2GiB`.
"""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from chairlift.api.config import EngineConfig
from chairlift.cli.config_sources import check_environment, option_name, variable_name
from chairlift.cli.values import duration, size

Command = Callable[..., None]

SIZES = frozenset({"kv_cache_memory", "swap_memory", "max_receive_bytes", "max_text_bytes"})
"""Settings in bytes."""

ENGINE_HELP = {
    "batching": "When a waiting request may first join the batch.",
    "batch_size": "Requests of a full static or dynamic batch; default: max-num-seqs.",
    "batch_window_s": "dynamic: longest wait of the oldest request for a full batch.",
    "batch_timeout_s": "static: the same, while streams stay open.",
    "max_num_seqs": "Rows of the batch; default: 64, on a GPU 256.",
    "max_num_batched_tokens": "Token budget of a step; default: 256, on a GPU 2048.",
    "step_budget_s": "Time of a step, such as 50ms: prompts are cut into chunks that fit, so that "
    "running answers continue; default: as long as its tokens take.",
    "steps_in_flight": "Steps that are launched before the first of them has ended, 1 or 2; "
    "default: 1 on a CPU, 2 on a GPU.",
    "drafts": "Tokens that a step checks beside the last one, where that pays: lookup finds them "
    "in the prompt and the answer; default: lookup, on a GPU off.",
    "draft": "A draft model: a smaller one of the same tokenizer, which proposes drafts where none "
    "are found; default: none.",
    "draft_quantize": "Weights of the draft model's linear layers; default: as --quantize.",
    "max_model_len": "Longest prompt plus answer; default: the model's own.",
    "max_queued_requests": "Cap of the waiting queue.",
    "max_text_bytes": "Longest text that is tokenized, such as 1MiB; of a chat, when rendered.",
    "kv_cache_memory": "Memory of the KV cache, such as 2GiB; default: what the model can use, "
    "at most a quarter of the memory.",
    "swap_memory": "Host memory for KV blocks of preempted requests, such as 4GiB, where a GPU "
    "runs the model (on a CPU --kv-cache-memory gains more); default: none, they compute again.",
    "prefix_cache": "Share the KV blocks of equal prompt beginnings, of a hybrid its states, too.",
    "state_snapshots": "States of a hybrid that are kept for prompts with the same beginning; "
    "default: four for each row, in at most a quarter of the KV cache's memory.",
    "device": "Where the model runs; auto is a GPU if there is one that can run it.",
    "dtype": "Element type of weights and activations.",
    "model_impl": "What computes the layers; transformers serves decoders of other families too, "
    "more slowly, with `chairlift[transformers]`.",
    "quantize": "Weights of linear layers in 8 or 4 bits.",
    "kv_cache_dtype": "Keys and values; int8 (CPU) and fp8 (GPU) halve the memory of bfloat16.",
    "adapters": "An adapter (LoRA) that is loaded at the start, NAME=FOLDER; repeat it for more.",
    "adapter_tenants": "A tenant that may use it, NAME=TENANT; default: every tenant.",
    "adapter_folder": "Folder whose adapters LoadAdapter may load by name; default: none.",
    "max_adapters": "Adapters in memory at a time; default: those of the start, and 8 more with "
    "--adapter-folder.",
    "max_adapter_rank": "Largest rank of an adapter; memory is planned for it.",
    "num_threads": "Threads of the kernels; default: the cores this process may use.",
    "tool_format": "How the model writes function calls; auto: by its chat template.",
    "reasoning_format": "How the model marks its reasoning; auto: by its chat template.",
    "default_max_tokens": "Longest answer where a request names none; default: what the context "
    "leaves.",
    "queue_timeout_s": "A request that has not started by then fails.",
    "time_limit_s": "A request that has not ended by then ends with the tokens so far.",
}
"""Settings with an option, in the order of --help. `block_size` has one value so far and none."""


OF_ADAPTERS = frozenset(
    {"adapters", "adapter_tenants", "adapter_folder", "max_adapters", "max_adapter_rank"}
)
"""Settings for commands whose requests can name an adapter."""

OF_THE_PLACE = ("max_num_seqs", "max_num_batched_tokens", "prefix_cache")
"""Settings whose defaults depend on the device or the model: they are passed on only if set."""


def engine_options(
    *,
    only: frozenset[str] = frozenset(ENGINE_HELP),
    without: frozenset[str] = frozenset(),
    defaults: Mapping[str, object] | None = None,
) -> Callable[[Command], Command]:
    """Decorate a command that takes `settings: dict[str, Any]`, the values for `EngineConfig`.

    Args:
        only: Settings that apply to this command.
        without: Settings that this command sets itself.
        defaults: Settings whose default differs from that of `EngineConfig`.
    """
    texts = {name: text for name, text in ENGINE_HELP.items() if name in only - without}
    values = {**dict.fromkeys(OF_THE_PLACE), **(defaults or {})}
    return config_options(EngineConfig, texts, into="settings", panel="Engine", defaults=values)


def config_options(
    config: type[BaseModel],
    texts: Mapping[str, str],
    *,
    into: str,
    panel: str,
    defaults: Mapping[str, object] | None = None,
) -> Callable[[Command], Command]:
    """Decorate a command that takes a dict of settings.

    Args:
        config: The class that defines the settings, their types and defaults.
        texts: The settings that become options, and their help.
        into: Parameter of the command that takes the dict; unset ones (None) are left out.
        panel: Heading in --help.
        defaults: Defaults that differ from those of `config`.
    """
    given = {name: value for name, value in (defaults or {}).items() if name in texts}
    values = {name: config.model_fields[name].default for name in texts} | given
    added = [
        _parameter(name, config.model_fields[name], values[name], text, panel)
        for name, text in texts.items()
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_settings(*args: object, **options: object) -> None:
            check_environment()
            given = {name: options.pop(name) for name in texts}
            options[into] = {name: value for name, value in given.items() if value is not None}
            command(*args, **options)

        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.name != into]
        with_settings.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        with_settings.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
        return with_settings

    return decorate


def _parameter(
    name: str,
    field: FieldInfo,
    default: Any,  # noqa: ANN401, of whatever type the setting has
    text: str,
    panel: str,
) -> inspect.Parameter:
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
        make_option = functools.partial(typer.Option, metavar=metavar)
    elif name.endswith("_format"):
        text = f"{text} One of {', '.join(kind)}."
        make_option = functools.partial(typer.Option, metavar="FORMAT")
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
