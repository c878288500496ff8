"""Widen SmolLM2's GGUF file to a folder of bfloat16 safetensors, for the tools that quantize.

    python make_base.py MODEL.gguf FOLDER

Run in the environment of the tools, without Chairlift.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

if __name__ == "__main__":
    file, folder = Path(sys.argv[1]), sys.argv[2]
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.bfloat16
    )
    # The weights are plain by now; a model that says otherwise is not saved.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model, "quantization_method"):
        del model.quantization_method
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
