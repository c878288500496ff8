"""Compute the log probabilities of token ids by transformers, from a quantized folder.

    python oracle.py FOLDER IDS.npy LOG_PROBS.npy

Weights are dequantized to float32, and inputs of layers are not quantized. Run in the environment
of the tool that made the folder, without Chairlift.
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

if __name__ == "__main__":
    folder, ids_file, out = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for module in model.modules():
        # compressed-tensors quantizes inputs in the forward pass where the scheme says so.
        if getattr(module, "quantization_scheme", None) is not None:
            module.quantization_scheme.input_activations = None
    ids = torch.from_numpy(np.load(ids_file)).long()
    with torch.inference_mode():
        logits = model(ids[None]).logits[0].float()
    np.save(out, torch.log_softmax(logits, -1).numpy())
