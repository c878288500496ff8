"""Adapters of models of any family, as PEFT saves them, with random numbers for every layer."""

import json
from pathlib import Path

import torch
from chairlift.model.config import ModelConfig
from chairlift.model.lora.load import linears
from chairlift.model.tensors.model_tensors import model_tensors
from safetensors.torch import save_file

RANK, ALPHA = 4, 8.0


def write(folder: Path, config: ModelConfig, seed: int = 3) -> dict[str, torch.Tensor]:
    """Write an adapter; return what it adds to the weight of each layer, by name."""
    generator = torch.Generator().manual_seed(seed)
    tensors, updates = {}, {}
    for layer in model_tensors(config.spec, config.module_names).layers:
        for part in linears(layer):
            for name, outputs in zip(part.names, part.outputs, strict=True):
                a = torch.randn(RANK, part.inputs, generator=generator) / part.inputs**0.5
                b = torch.randn(outputs, RANK, generator=generator) / 4
                updates[name] = ALPHA / RANK * b @ a
                tensors[f"base_model.model.{name}.lora_A.weight"] = a
                tensors[f"base_model.model.{name}.lora_B.weight"] = b
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ".*"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return updates
