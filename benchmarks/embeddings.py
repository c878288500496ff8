"""Vectors of MiniLM beside sentence-transformers, ONNX Runtime and OpenVINO.

    python -m benchmarks.embeddings --texts 2000
    python -m benchmarks.embeddings --texts 600 --sides "onnxruntime int8;chairlift int8" --rounds 3

Each side computes the same texts on the same cores: pieces of the documentation of Python's
standard library, with lengths drawn evenly from 8 to 256 tokens. ONNX Runtime and OpenVINO get
batches of 32 texts in the order of length, as `SentenceTransformer.encode` makes them. Each side
also ranks the descriptions of functions for the first line of each (`retrieval`). A side that is
not installed (`pip install sentence-transformers onnxruntime onnx openvino`) is left out.
`chairlift bench embeddings` compares the policies.
"""

import argparse
import inspect
import json
import pydoc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import numpy as np
from chairlift.api.config import EngineSettings
from chairlift.api.machine import available_cores
from chairlift.api.types import Pooling, Request
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.embed_all import pool_all
from chairlift.engine.engine import Engine
from chairlift.text.tokenizer import Tokenizer
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]
Side = Callable[[], AbstractContextManager[Encode]]
"""Load a model; the context gives the function that computes vectors of length 1."""
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


def descriptions() -> tuple[list[str], list[str]]:
    """Return the first lines of the functions' descriptions, and what follows each."""
    pairs: dict[str, str] = {}
    for name in _MODULES:
        for _, value in sorted(vars(import_module(name)).items()):
            first, _, rest = (inspect.getdoc(value) or "").partition("\n")
            if callable(value) and len(first) > 20 and len(rest.split()) > 20:
                pairs.setdefault(first.strip(), " ".join(rest.split()))
    return list(pairs), list(pairs.values())


@contextmanager
def chairlift(**settings: Unpack[EngineSettings]) -> Iterator[Encode]:
    """Load MiniLM into an engine of this process."""
    settings["batching"] = "continuous"
    with Engine("minilm", **settings) as engine:

        def encode(texts: list[str]) -> Vectors:
            requests = [Request(text, pooling=Pooling(truncate_end=True)) for text in texts]
            results = dict(pool_all(engine, requests))
            return np.stack([results[place].vector() for place in range(len(texts))])

        yield encode


@contextmanager
def sentence_transformers(folder: Path) -> Iterator[Encode]:
    """Load MiniLM with sentence-transformers, in float32."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(available_cores())
    model = SentenceTransformer(str(folder), device="cpu")

    def encode(texts: list[str]) -> Vectors:
        vectors: Vectors = model.encode(texts, batch_size=_BATCH, show_progress_bar=False)
        return vectors

    yield encode


def _batches(
    folder: Path, names: set[str], run: Callable[[dict[str, Any]], Vectors]
) -> Callable[[list[str]], Vectors]:
    """Return a function that runs a graph of MiniLM by batches of texts of similar length."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(texts: list[str]) -> Vectors:
        vectors = np.empty((len(texts), 384), np.float32)
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
            weights = inputs["attention_mask"][..., None].astype(np.float32)
            hidden = run({name: value for name, value in inputs.items() if name in names})
            mean = (hidden * weights).sum(1) / weights.sum(1)
            vectors[places] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors

    return encode


def _exported(folder: Path, place: Path) -> Path:
    """Return MiniLM as an ONNX file with free sizes of the batch and of the texts."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    path = place / "model.onnx"
    if path.exists():
        return path
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:  # noqa: ANN401 - traced
            outputs = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return outputs.last_hidden_state

    names = ("input_ids", "attention_mask", "token_type_ids")
    tokenizer = AutoTokenizer.from_pretrained(folder)
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
    return path


@contextmanager
def onnxruntime(folder: Path, place: Path, *, int8: bool) -> Iterator[Encode]:
    """Load MiniLM into ONNX Runtime."""
    import onnxruntime as runtime

    path = _exported(folder, place)
    if int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantized = place / "int8.onnx"
        quantize_dynamic(path, quantized, weight_type=QuantType.QInt8)
        path = quantized
    options = runtime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    session = runtime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    yield _batches(folder, names, lambda inputs: session.run(None, inputs)[0])


@contextmanager
def openvino(folder: Path, place: Path, *, precision: str) -> Iterator[Encode]:
    """Load MiniLM into OpenVINO, which computes in `precision`, "" for its own choice."""
    from openvino import Core

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": available_cores()}
    if precision:
        options["INFERENCE_PRECISION_HINT"] = precision
    compiled = Core().compile_model(str(_exported(folder, place)), "CPU", options)
    names = {value.get_any_name() for value in compiled.inputs}
    yield _batches(folder, names, lambda inputs: np.asarray(compiled(inputs)[0]))


def retrieval(encode: Encode) -> tuple[float, list[list[int]]]:
    """Return the mean reciprocal rank among the first ten, and these ten for each query."""
    queries, documents = descriptions()
    scores = encode(queries) @ encode(documents).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10].tolist()
    ranks = [row.index(place) + 1 if place in row else 0 for place, row in enumerate(best)]
    return statistics.fmean(1 / rank if rank else 0.0 for rank in ranks), best


def _sides(folder: Path, place: Path) -> dict[str, Side]:
    return {
        "sentence-transformers float32": partial(sentence_transformers, folder),
        "onnxruntime float32": partial(onnxruntime, folder, place, int8=False),
        "onnxruntime int8": partial(onnxruntime, folder, place, int8=True),
        "openvino float32": partial(openvino, folder, place, precision="f32"),
        "openvino, its own choice": partial(openvino, folder, place, precision=""),
        "chairlift float32": partial(chairlift, dtype="float32"),
        "chairlift bfloat16": chairlift,
        "chairlift int8": partial(chairlift, quantize="int8"),
        "chairlift int4": partial(chairlift, quantize="int4"),
    }


def _measured(side: Side, texts: list[str]) -> tuple[float, Vectors, float, list[list[int]]]:
    with side() as encode:
        encode(texts[:64])
        began = time.perf_counter()
        vectors = encode(texts)
        took = time.perf_counter() - began
        return (len(texts) / took, vectors, *retrieval(encode))


def main() -> None:
    """Print a line of JSON for each side and round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1, help="all sides in turns, so many times")
    parser.add_argument("--sides", default="", help="some of the sides, with ; between")
    arguments = parser.parse_args()
    with Engine("minilm") as engine:
        texts = texts_of(engine.tokenizer, arguments.texts)
    exact: tuple[Vectors, list[list[int]]] | None = None
    with TemporaryDirectory() as name:
        sides = _sides(resolve_model("minilm"), Path(name))
        chosen = arguments.sides.split(";") if arguments.sides else list(sides)
        for side in chosen * arguments.rounds:
            try:
                rate, vectors, reciprocal, best = _measured(sides[side], texts)
            except ImportError as error:
                print(json.dumps({"side": side, "missing": str(error)}))
                continue
            exact = exact or (vectors, best)
            cosines = (vectors * exact[0]).sum(1)
            pairs = list(zip(best, exact[1], strict=True))
            shared = [len({*one} & {*other}) / 10 for one, other in pairs]
            line = {
                "side": side,
                "texts_per_s": round(rate, 1),
                "least_cosine": round(float(cosines.min()), 6),
                "mean_reciprocal_rank": round(reciprocal, 4),
                "same_best": round(statistics.fmean(one[0] == other[0] for one, other in pairs), 4),
                "same_ten": round(statistics.fmean(shared), 4),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
