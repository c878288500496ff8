"""The machine and the model of a measurement: figures mean nothing without them."""

import functools
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from chairlift.engine.engine import Engine


_READ_BYTES: Final = 128 << 20
"""Far more than caches hold."""


def environment_of(engine: "Engine") -> dict[str, Any]:
    """Return facts about the machine and the model of an engine; unknown ones are left out."""
    import torch

    from chairlift import _core
    from chairlift.api.machine import available_cores

    config = engine.config
    found: dict[str, Any] = {
        "chairlift": version("chairlift"),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": available_cores(),
        "cpu_features": _core.cpu_features(),
        "device": str(config.device.value),
        "model": engine.model_name,
        "dtype": str(getattr(engine.model_config, "dtype", "")).removeprefix("torch."),
        "quantize": config.quantize.value,
        "max_context_len": engine.max_context_len,
        "block_size": config.block_size,
        "num_kv_blocks": engine.num_kv_blocks,
        "read_bytes_per_s": None if engine.device.accelerator else read_bytes_per_s(),
        **_memory(engine),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


@functools.cache
def read_bytes_per_s() -> float:
    """Return how fast this machine's cores read memory: the best of some reads."""
    import torch

    from chairlift import _core

    words = torch.zeros(_READ_BYTES // 4, dtype=torch.int32)
    _core.read_memory(words)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        _core.read_memory(words)
        seconds.append(time.perf_counter() - started)
    return _READ_BYTES / min(seconds)


def _memory(engine: "Engine") -> dict[str, int]:
    from chairlift.engine.loading.load import plan_at
    from chairlift.model.config import ModelConfig

    if not isinstance(engine.model_config, ModelConfig):
        return {}
    plan = plan_at(engine.device, engine.model_config)
    return {
        "weight_bytes": plan.weight_bytes,
        "active_weight_bytes": plan.active_weight_bytes or plan.weight_bytes,
        "kv_bytes_per_token": plan.block_bytes // engine.config.block_size,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
