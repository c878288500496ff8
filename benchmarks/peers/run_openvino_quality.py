"""OpenVINO: the log probabilities of texts, in the format that `run_openvino.py` measures.

python run_openvino_quality.py FOLDER IDS.npy CONVERTED OUT.npy --dtype int8
"""

import argparse
from pathlib import Path

import numpy as np
import openvino
from protocol import Job
from run_openvino import convert


def main() -> None:
    """Convert the model if needed, and save the log probabilities of second halves of windows."""
    parser = argparse.ArgumentParser()
    for name in ("model", "ids", "converted", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--dtype", required=True)
    options = parser.parse_args()
    if not options.converted.exists():
        options.converted.parent.mkdir(exist_ok=True)
        convert(Job(options.model, [], options.dtype, 1, 1, options.converted, True))
    model = openvino.Core().compile_model(
        options.converted / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}
    )
    request = model.create_infer_request()
    names = {name for each in model.inputs for name in each.names}
    halves = []
    for ids in np.load(options.ids).astype(np.int64):
        request.reset_state()
        inputs = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer({name: value for name, value in inputs.items() if name in names})
        logits = request.get_tensor("logits").data[0, len(ids) // 2 - 1 : -1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        halves.append((logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32))
    np.save(options.out, np.stack(halves))


if __name__ == "__main__":
    main()
