"""Adapters as PEFT saves them, with random numbers, and the model that one merges into."""

import copy
import json

import torch
from safetensors.torch import save_file

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write(folder, model, *, seed=0, rank=4, targets=ALL_LINEAR, dtype=torch.float32, **fields):
    """Write an adapter of a `transformers` model and return its folder.

    Args:
        folder: Becomes a folder.
        model: The base.
        seed: Of its numbers.
        rank: Of every layer.
        targets: Ends of the names of the layers that it changes.
        dtype: Of the file.
        fields: Of `adapter_config.json`, beside those of a plain LoRA.
    """
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            outputs, inputs = module.weight.shape
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                numbers = 0.3 * torch.randn(shape, generator=draw)
                tensors[f"base_model.model.{name}.lora_{half}.weight"] = numbers.to(dtype)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged(model, folder):
    """Return a copy of a model with `scale * B A` added to its weights, as PEFT merges it."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    rank = config["r"]
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    tensors = load_file(folder / "adapter_model.safetensors")
    model = copy.deepcopy(model)
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, a in tensors.items():
            if name.endswith(".lora_A.weight"):
                layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                b = tensors[name.replace("lora_A", "lora_B")]
                modules[layer].weight.add_(scale * (b.float() @ a.float()))
    return model
