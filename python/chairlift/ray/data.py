"""Jobs on Ray Data: a file of requests, a file of answers, any number of engines.

    from chairlift.ray.data import answer_file

    answer_file("requests.jsonl", "answers.jsonl", model="demo", engines=4)

Entries and answers are those of `chairlift batch`.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from chairlift.api.config import checked, engine_config
from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.checkpoints.files.folder import check_model
from chairlift.cli.batch.local import LocalRunner
from chairlift.cli.config_options import ANSWER_SETTINGS
from chairlift.engine.engine import Engine
from chairlift.ray.parts import Output, Part, answer, parts_of
from chairlift.server.config import ServerConfig
from chairlift.server.protocols.openai.logprobs import TokenTexts

# By default Ray would try a part that ends its engine for ever.
_RESTARTS = {"max_restarts": 20, "max_task_retries": 3}


def answer_file(
    source: str | Path,
    output: str | Path,
    *,
    model: str = "demo",
    engines: int = 1,
    settings: dict[str, Any] | None = None,
    actor_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Answer the entries of a file; the same call goes on where an earlier one ended.

    Args:
        source: A file of lines, or a table (`.parquet`); every machine has to see it.
        output: A file of lines, or with `.parquet` a folder of tables; the same holds for it.
        model: The model, as `chairlift batch` takes it.
        engines: Engines at once.
        settings: Settings of the engine, such as `max_num_seqs`.
        actor_options: Options of Ray for each engine: num_cpus, num_gpus, resources. An engine is
            started again 20 times, and a part tried again 3 times, if max_restarts and
            max_task_retries do not say otherwise.

    Returns:
        `lines`, `errors`, `parts`, `earlier` (parts that were there) and `seconds`.

    Raises:
        ChairliftError: The input cannot be read, the output is of another job, or a setting is
            wrong, or the engines fail.
    """
    began = time.monotonic()
    if engines < 1:
        message = f"engines: expected at least 1, got {engines!r}"
        raise ConfigError(message)
    settings = dict(settings or {})
    config = engine_config(**settings)
    check_model(model)
    if Path(model).exists():
        model = str(Path(model).absolute())
    into = Output(Path(output).absolute())
    digest, parts = parts_of(Path(source).absolute())
    job = {name: str(getattr(config, name)) for name in ANSWER_SETTINGS}
    into.begin({"input": digest, "model": model, **job})
    left = [part for part in parts if not into.file_of(part).exists()]
    counts: Counter[str] = Counter()
    if left:
        values = {"model": model, "settings": settings, "output": str(into.path)}
        counts = _run(left, values, engines, actor_options or {})
    into.finish(parts)
    return {
        "lines": counts["lines"],
        "errors": counts["errors"],
        "parts": len(parts),
        "earlier": len(parts) - len(left),
        "seconds": round(time.monotonic() - began, 3),
    }


def _run(
    parts: Sequence[Part], values: dict[str, Any], engines: int, actor_options: dict[str, Any]
) -> Counter[str]:
    """Answer parts by engines with these values; return the sums of `lines` and `errors`."""
    dataset = ray.data.from_items([asdict(part) for part in parts], override_num_blocks=len(parts))
    answered = dataset.map_batches(
        Answering,
        fn_constructor_kwargs=values,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(engines, len(parts))),
        **_RESTARTS | actor_options,
    )
    counts: Counter[str] = Counter()
    try:
        for row in answered.iter_rows():
            counts.update(lines=int(row["lines"]), errors=int(row["errors"]))
    except ray.exceptions.RayError as error:
        message = f"{error}; the parts that are answered stay: the same call goes on"
        raise ChairliftError(message) from error
    return counts


class Answering:
    """An engine of a job; Ray Data starts it again, and its part, when its machine is lost."""

    def __init__(self, model: str, settings: dict[str, Any], output: str) -> None:
        """Load the model.

        Args:
            model: The model, as `Engine` takes it.
            settings: Settings of the engine.
            output: Path of the answers.
        """
        self._engine = Engine(model, **settings)
        self._served = checked(ServerConfig, model=model).model_names
        self._texts = TokenTexts(lambda: self._engine.tokenizer)
        self._output = Output(Path(output))

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[int]]:
        """Answer parts into their files; return how many lines and errors each has.

        Args:
            batch: Columns of `Part`.
        """
        lines, errors = [], []
        for path, first, start, end in zip(
            batch["path"], batch["first"], batch["start"], batch["end"], strict=True
        ):
            part = Part(str(path), int(first), int(start), int(end))
            answers = answer(part, LocalRunner(self._engine).run, self._served, self._texts)
            self._output.write(part, answers)
            lines.append(len(answers))
            errors.append(sum(answered.is_error for answered in answers))
        return {"lines": lines, "errors": errors}
