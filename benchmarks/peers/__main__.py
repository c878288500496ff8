"""`make bench-peers`: installs the peers, runs them in turns with Chairlift, prints a table."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.peers.comparison import (
    Comparison,
    compare,
    page_with_marks,
    put_between_marks,
    table,
    with_kept_rows,
)
from benchmarks.peers.converted import HOME as CONVERTED
from benchmarks.peers.converted import QUANTIZED, fingerprint, quantized
from benchmarks.peers.environments import held_to, install
from benchmarks.peers.model import SHAPES, make_model
from benchmarks.peers.processes import PeerError, call
from benchmarks.peers.protocol import KV_CACHE_DTYPES, STEP_TOKENS
from benchmarks.peers.workload import KINDS, write_workload

WITH_QUANTIZED = ["openvino", "llamacpp"]
"""Peers that take weights, or keys and values, in fewer than 16 bits."""
DEFAULTS = {
    "model": None,
    "shape": "llama",
    "gguf": None,
    "workload": None,
    "kind": "chat",
    "rows": 32,
    "kv_cache_dtype": "auto",
    "served": False,
    "cpu": None,
}
"""What a table without a name was measured with, beside its dtype."""
HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".tools" / "peers"
TITLES = {
    "openvino": "OpenVINO GenAI 2026.4.1",
    "llamacpp": "llama.cpp (of llama-cpp-python 0.3.36), server",
    "transformers": "transformers 5.23.0, static batches",
    "vllm": "vLLM 0.32.0, CPU",
}


def main() -> None:
    """Run the comparison that the command line selects."""
    options = read_options()
    page = page_of(options)
    HOME.mkdir(parents=True, exist_ok=True)
    pythons = install_all(options.peers)
    if options.install_only:
        return
    if options.gguf and Path(options.gguf).is_file():
        model = Path(options.gguf).resolve()
    else:
        model = options.model or made_model(options.shape)
        if options.gguf:
            model = gguf_file(options.gguf, model, pythons)
    workload = options.workload or made_workload(model, options.requests, options.kind)
    comparisons = []
    for peer, own in pythons.items():
        try:
            held = held_to(options.cpu, peer, HOME) if options.cpu else (own, {})
            python, variables = held
            chairlift, command = commands(peer, python, model, workload, options)
            comparison = compare(TITLES[peer], chairlift, command, options.rounds, say, variables)
            comparisons.append(comparison)
        except PeerError as error:
            say(f"{TITLES[peer]}: not measured: {error}")
    if not comparisons:
        sys.exit("no peer was measured")
    head = caption(model, workload, options)
    note = ""
    if options.dtype in QUANTIZED and not options.gguf:
        note = quality_note(options.dtype, WITH_QUANTIZED)
    print("\n\n".join(part for part in (head, table(comparisons), note) if part))
    if page is not None:
        write(page, options, head, comparisons, note)


def write(
    page: Path,
    options: argparse.Namespace,
    head: str,
    comparisons: Sequence[Comparison],
    note: str,
) -> None:
    """Keep what was measured in the table of a page.

    Args:
        page: Has the marks of the table.
        options: Of the run.
        head: What was measured, and on what.
        comparisons: With at least one peer.
        note: What the weights cost in quality; it may be empty.
    """
    # Tables of other requests in the same format refer to the one without a name.
    kept_note = note if options.section is None else ""
    document = put_between_marks(
        page.read_text(encoding="utf-8"),
        mark_of(options),
        lambda before: with_kept_rows(before, head, comparisons, kept_note),
    )
    page.write_text(document, encoding="utf-8")


def mark_of(options: argparse.Namespace) -> str:
    """Return the mark of the table that keeps what is measured."""
    return f"bench-peers {options.section or options.dtype}"


def page_of(options: argparse.Namespace) -> Path | None:
    """Return the page that keeps what is measured, before it is: None if none does.

    A table without a name is that of the default work and model.
    """
    if options.into is None:
        return None
    changed = [name for name, value in DEFAULTS.items() if getattr(options, name) != value]
    if changed and options.section is None:
        say(f"no page keeps this run: --section names the table of another {', '.join(changed)}")
        return None
    try:
        return page_with_marks(options.into, mark_of(options))
    except ValueError as error:
        sys.exit(f"--section: {error}")


def quality_note(dtype: str, peers: list[str]) -> str:
    """Return a line: what the weights cost in quality, on each side; kept rows have theirs too."""
    from benchmarks.peers.quality import measure

    try:
        rows = measure(peers, [dtype])
    except PeerError as error:
        say(f"quality: not measured: {error}")
        return ""
    figures = [
        f"{engine} {own['kl']:.4f} and {own['perplexity']:.2f}" for (engine, _), own in rows.items()
    ]
    return (
        f"Quality in {dtype}, of a rotated SmolLM2 (`python -m benchmarks.peers.quality`), "
        f"KL and perplexity: {', '.join(figures)}."
    )


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(TITLES)}")
    parser.add_argument("--model", type=Path, help="folder; default: random weights of --shape")
    parser.add_argument(
        "--shape", choices=SHAPES, default=DEFAULTS["shape"], help="of random weights"
    )
    parser.add_argument(
        "--gguf",
        help="a file that both sides read, or the format that llama.cpp makes of the model",
    )
    parser.add_argument("--workload", type=Path, help="as of `chairlift bench offline`")
    parser.add_argument(
        "--kind", choices=KINDS, default=DEFAULTS["kind"], help="of the made workload"
    )
    parser.add_argument("--requests", type=int, default=48, help="of the made workload")
    dtypes = ("float32", "bfloat16", *QUANTIZED)
    parser.add_argument("--dtype", choices=dtypes, default="bfloat16", help="of the weights")
    kept = DEFAULTS["kv_cache_dtype"]
    parser.add_argument(
        "--kv-cache-dtype", choices=KV_CACHE_DTYPES, default=kept, help="of both sides"
    )
    parser.add_argument("--served", action="store_true", help="Chairlift over gRPC, not offline")
    parser.add_argument("--cpu", choices=["avx2"], help="instructions that all are held to")
    parser.add_argument(
        "--rows", type=int, default=DEFAULTS["rows"], help="requests that run at once"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--into", type=Path, help="folder of the page that keeps the table")
    parser.add_argument("--section", help="of that page; default: the dtype")
    parser.add_argument("--install-only", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(TITLES):
        parser.error(f"unknown peer {', '.join(sorted(unknown))}: known are {', '.join(TITLES)}")
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    if options.gguf:
        if options.peers not in ([], ["llamacpp"]):
            parser.error("--gguf: only llamacpp reads such a file")
        options.peers = ["llamacpp"]
    able = [*WITH_QUANTIZED, "transformers"]
    for is_chosen, what in (
        (options.dtype in QUANTIZED, f"{options.dtype} weights"),
        (options.kv_cache_dtype != kept, f"keys and values in {options.kv_cache_dtype}"),
    ):
        if is_chosen:
            able = WITH_QUANTIZED
            if unable := set(options.peers) - set(able):
                parser.error(f"{', '.join(sorted(unable))}: not measured with {what}")
    options.peers = options.peers or able
    return options


def install_all(peers: list[str]) -> dict[str, Path]:
    """Return the Python of each peer that can be installed; print one line for each that cannot."""
    pythons = {}
    for peer in peers:
        say(f"{TITLES[peer]}: installing what is missing into {HOME / peer}")
        try:
            pythons[peer] = install(peer, HOME)
        except PeerError as error:
            say(f"{TITLES[peer]}: not installed: {error}")
    return pythons


def commands(
    peer: str, python: Path, model: Path, workload: Path, options: argparse.Namespace
) -> tuple[list[str | Path], list[str | Path]]:
    """Return the commands of the two sides: one JSON line each."""
    threads = str(len(os.sched_getaffinity(0)))
    kept: list[str | Path] = ["--kv-cache-dtype", options.kv_cache_dtype]
    common: list[str | Path] = ["--dtype", options.dtype]
    # Both read the weights of a GGUF file as they are stored.
    own = [] if options.gguf else common
    is_quantized = options.dtype in QUANTIZED and not options.gguf
    converted = CONVERTED / f"{peer}-{options.dtype}-{fingerprint(model)}"
    if options.gguf:
        converted = model
    command: list[str | Path] = [python, HERE / f"run_{peer}.py", model, workload, *common, *kept]
    command += ["--rows", str(options.rows), "--threads", threads, "--converted", converted]
    if is_quantized:
        say(f"chairlift quantize {model} --format {options.dtype}, unless it is there")
        model = quantized(model, options.dtype)
    chairlift: list[str | Path] = [Path(sys.executable).with_name("chairlift")]
    chairlift += ["bench", "offline", model, "--workload", workload, "--json"]
    if options.served:
        chairlift = [sys.executable, "-m", "benchmarks.peers.run_served", model, workload]
    # A model that is stored in a format has it already.
    chairlift += [] if is_quantized else own
    # Random weights repeat themselves, which drafts would profit from; the peers have none.
    chairlift += [*kept, "--drafts", "off"]
    chairlift += ["--max-num-batched-tokens", str(STEP_TOKENS)]
    chairlift += ["--max-num-seqs", str(options.rows), "--num-threads", threads]
    CONVERTED.mkdir(exist_ok=True)
    return chairlift, command


def gguf_file(name: str, model: Path, pythons: dict[str, Path]) -> Path:
    """Return the GGUF file in a format that llama.cpp makes of the model."""
    converted = CONVERTED / f"{name}-{fingerprint(model)}.gguf"
    if not converted.exists():
        say(f"making {converted}")
        converted.parent.mkdir(exist_ok=True)
        command: list[str | Path] = [pythons["llamacpp"], HERE / "run_llamacpp.py", model]
        command += [os.devnull, "--dtype", name, "--rows", "1", "--threads", "1"]
        call([*command, "--converted", converted, "--convert-only"])
    return converted


def made_model(shape: str) -> Path:
    """Return the model with random weights, made once."""
    folder = HOME / f"model-{shape}"
    if not folder.exists():
        say(f"making a model with random weights in {folder}")
        partial = folder.with_name(f"{folder.name}.partial")
        make_model(partial, shape)
        partial.rename(folder)
    return folder


def made_workload(model: Path, num_requests: int, kind: str) -> Path:
    """Return work for a model's vocabulary."""
    from chairlift.model.config import ModelConfig

    vocab_size = ModelConfig.load(model).spec.vocab_size
    path = HOME / f"workload-{kind}-{num_requests}-{vocab_size}.jsonl"
    write_workload(path, num_requests, vocab_size, kind)
    return path


def caption(model: Path, workload: Path, options: argparse.Namespace) -> str:
    """What was measured, and on what."""
    entries = [json.loads(line) for line in workload.read_text(encoding="utf-8").splitlines()]
    num_prompt = sum(len(entry["prompt_token_ids"]) for entry in entries)
    num_output = sum(entry["max_tokens"] for entry in entries)
    name = model.name if options.model else SHAPES[options.shape][0]
    stored = options.dtype
    if options.gguf:
        stored = options.gguf if not Path(options.gguf).is_file() else "the file's format"
        name = name if stored == options.gguf else model.name
    side = ", served over gRPC" if options.served else ""
    kept = options.kv_cache_dtype
    keys = "" if kept == "auto" else f" (keys and values in {kept})"
    return (
        f"{name} in {stored}{keys}{side}, {len(entries)} requests ({num_prompt:,} prompt and "
        f"{num_output:,} output tokens), {options.rows} rows, {cpu(options.cpu)}, {date.today()}; "
        f"medians of {options.rounds} rounds, the range of the ratio in brackets."
    )


def cpu(held_to: str | None) -> str:
    """The machine in words, and the set of instructions that the engines are held to."""
    cores = len(os.sched_getaffinity(0))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{cores} cores of {platform.machine()}"
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in facts.items()}
    flags = names.get("flags", "").split()
    units = [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags]
    able = f"held to {held_to}" if held_to else ", ".join(units)
    return f"{cores} cores of {names.get('model name', platform.machine())} ({able})"


def say(line: str) -> None:
    """Progress goes to stderr, the table to stdout."""
    print(f"    {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
