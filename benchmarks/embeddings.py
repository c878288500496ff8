"""Vectors of MiniLM beside sentence-transformers' method in PyTorch, and ONNX Runtime.

    python -m benchmarks.embeddings --texts 2000

Each side computes the same texts on the same cores: pieces of the documentation of Python's
standard library, with lengths drawn evenly from 8 to 256 tokens. Peers get batches of 32 texts in
the order of length, as `SentenceTransformer.encode` makes them. A side that is not installed
(`pip install onnxruntime onnx`) is left out. `chairlift bench embeddings` compares the policies.
"""

import argparse
import json
import pydoc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import numpy as np
from chairlift.config import EngineSettings
from chairlift.engine.engine import Engine
from chairlift.engine.pooling.embed_all import pool_all
from chairlift.machine import available_cores
from chairlift.model.folder import resolve_model
from chairlift.model.tokenizer import Tokenizer
from chairlift.types import Pooling, Request
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Tokenize = Callable[..., Any]
"""A tokenizer of `transformers`."""
_BATCH = 32
_MODULES = (
    *("argparse", "asyncio", "collections", "csv", "datetime", "decimal", "difflib", "email"),
    *("fractions", "heapq", "http", "inspect", "json", "logging", "math", "os", "pathlib"),
    *("random", "re", "shutil", "socket", "statistics", "string", "subprocess", "threading"),
)


def texts_of(tokenizer: Tokenizer, num: int, seed: int = 0) -> list[str]:
    """Return texts of 8 to 256 tokens from the documentation of the standard library."""
    pages = [pydoc.plain(pydoc.render_doc(name)) for name in _MODULES]
    words = [word for page in pages for word in page.split() if len(word) < 30]
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < num:
        start = draw.randrange(len(words) - 300)
        most = draw.randint(8, 256)
        text = " ".join(words[start : start + most])
        ids, _ = tokenizer.encode_input(text, None, most, add_special_tokens=True)
        texts.append(tokenizer.decode(ids))
    return texts


def chairlift(texts: list[str], **settings: Unpack[EngineSettings]) -> tuple[Vectors, float]:
    """Return the vectors and the seconds that they took."""
    settings["batching"] = "continuous"
    with Engine("minilm", **settings) as engine:
        requests = [Request(text, pooling=Pooling(truncate=True)) for text in texts]
        list(pool_all(engine, requests[:64]))
        began = time.perf_counter()
        results = dict(pool_all(engine, requests))
        took = time.perf_counter() - began
    return np.stack([results[place].vector() for place in range(len(texts))]), took


def _encoded(tokenizer: Tokenize, texts: list[str]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield batches in the order of length, as sentence-transformers makes them."""
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    for first in range(0, len(order), _BATCH):
        places = order[first : first + _BATCH]
        inputs = tokenizer(
            [texts[place] for place in places],
            padding=True,
            truncation=True,
            max_length=256,
            return_tensors="np",
        )
        yield places, dict(inputs)


def _mean(hidden: Vectors, mask: NDArray[np.int64]) -> Vectors:
    weights = mask[..., None].astype(np.float32)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    vectors: Vectors = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return vectors


def _peer(
    texts: list[str], tokenizer: Tokenize, run: Callable[[dict[str, Any]], Vectors]
) -> tuple[Vectors, float]:
    for _, inputs in _encoded(tokenizer, texts[:64]):
        run(inputs)
    began = time.perf_counter()
    vectors = np.empty((len(texts), 384), np.float32)
    for places, inputs in _encoded(tokenizer, texts):
        vectors[places] = _mean(run(inputs), inputs["attention_mask"])
    return vectors, time.perf_counter() - began


def pytorch(texts: list[str], folder: Path) -> tuple[Vectors, float]:
    """Return the vectors by PyTorch, as sentence-transformers computes them, and the seconds."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(available_cores())
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def run(inputs: dict[str, Any]) -> Vectors:
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
            hidden: Vectors = model(**tensors).last_hidden_state.numpy()
            return hidden

    return _peer(texts, tokenizer, run)


def _export(model: Any, tokenizer: Tokenize, path: Path) -> None:  # noqa: ANN401 - untyped
    """Write a model as ONNX, with free sizes of the batch and of the texts."""
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:  # noqa: ANN401 - traced
            outputs = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return outputs.last_hidden_state

    names = ("input_ids", "attention_mask", "token_type_ids")
    sample = tokenizer(["one two three", "four"], padding=True, return_tensors="pt")
    torch.onnx.export(
        Hidden().eval(),
        tuple(sample[name] for name in names),
        str(path),
        input_names=list(names),
        output_names=["hidden"],
        dynamic_axes={key: {0: "batch", 1: "tokens"} for key in (*names, "hidden")},
        dynamo=False,
    )


def onnx(texts: list[str], folder: Path, place: Path, *, int8: bool) -> tuple[Vectors, float]:
    """Return the vectors by ONNX Runtime, and the seconds."""
    import onnxruntime
    from transformers import AutoModel, AutoTokenizer

    path = place / "model.onnx"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not path.exists():
        _export(AutoModel.from_pretrained(folder, attn_implementation="eager"), tokenizer, path)
    if int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantized = place / "int8.onnx"
        quantize_dynamic(path, quantized, weight_type=QuantType.QInt8)
        path = quantized
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}

    def run(inputs: dict[str, Any]) -> Vectors:
        given = {name: value for name, value in inputs.items() if name in names}
        hidden: Vectors = session.run(None, given)[0]
        return hidden

    return _peer(texts, tokenizer, run)


def main() -> None:
    """Print a line of JSON for each side."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--sides", default="", help="some of the sides, with commas between")
    arguments = parser.parse_args()
    folder = resolve_model("minilm")
    with Engine("minilm") as engine:
        texts = texts_of(engine.tokenizer, arguments.texts)
    with TemporaryDirectory() as name:
        place = Path(name)
        sides: dict[str, Callable[[], tuple[Vectors, float]]] = {
            "pytorch float32": lambda: pytorch(texts, folder),
            "onnxruntime float32": lambda: onnx(texts, folder, place, int8=False),
            "onnxruntime int8": lambda: onnx(texts, folder, place, int8=True),
            "chairlift float32": lambda: chairlift(texts, dtype="float32"),
            "chairlift bfloat16": lambda: chairlift(texts),
            "chairlift int8": lambda: chairlift(texts, quantize="int8"),
            "chairlift int4": lambda: chairlift(texts, quantize="int4"),
        }
        exact: Vectors | None = None
        for side, run in sides.items():
            if arguments.sides and side not in arguments.sides.split(","):
                continue
            try:
                vectors, took = run()
            except ImportError as error:
                print(json.dumps({"side": side, "missing": str(error)}))
                continue
            exact = vectors if exact is None else exact
            cosines = (vectors * exact).sum(1)
            print(
                json.dumps(
                    {
                        "side": side,
                        "texts_per_s": round(len(texts) / took, 1),
                        "least_cosine": round(float(cosines.min()), 6),
                        "mean_cosine": round(float(cosines.mean()), 6),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
