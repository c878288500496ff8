"""Random files of sentence-transformers, and what its modules compute, in plain PyTorch."""

import json

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

PACKAGE = "sentence_transformers.models"
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.activation.ReLU": functional.relu,
    "torch.nn.modules.activation.GELU": functional.gelu,
    "torch.nn.modules.activation.SiLU": functional.silu,
    "torch.nn.modules.activation.Sigmoid": torch.sigmoid,
}
MODES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
PROMPTS = {"query": "ride the chair: ", "plain": ""}


@torch.inference_mode()
def vector(folder, text, prompt=""):
    """Return the vector of a text, float32, by the modules in their order."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    sizes, general = (
        json.loads((folder / name).read_text())
        for name in ("sentence_roberta_config.json", "config_sentence_transformers.json")
    )
    own_texts = [own.lower() if sizes["do_lower_case"] else own for own in (prompt + text, prompt)]
    limit = {"truncation": True, "max_length": sizes["max_seq_length"]}
    ids, before = (tokenizer(own, **limit)["input_ids"] for own in own_texts)
    hidden = model(torch.tensor([ids])).last_hidden_state[0]
    for module in json.loads((folder / "modules.json").read_text())[1:]:
        own = folder / module["path"]
        config = json.loads((own / "config.json").read_text())
        path = own / "model.safetensors"
        weights = load_file(path) if path.exists() else {}
        match module["type"].rpartition(".")[2]:
            case "Pooling":
                skipped = 0 if config["include_prompt"] or not prompt else len(before) - 1
                x = pooled(hidden[min(skipped, len(hidden) - 1) :], config)
            case "Dense":
                x = functional.linear(x, weights["linear.weight"], weights.get("linear.bias"))
                x = ACTIVATIONS[config["activation_function"]](x)
            case "LayerNorm":
                x = functional.layer_norm(x, x.shape, weights["norm.weight"], weights["norm.bias"])
            case "Normalize":
                x = functional.normalize(x, dim=-1)
    return x[: general["truncate_dim"]]


def pooled(hidden, config):
    """Pool by the mode's name, or by a flag for each."""
    mode = config.get("pooling_mode")
    mode = mode or next(own for own, flag in MODES.items() if config[f"pooling_mode_{flag}"])
    by_mode = {"cls": hidden[0], "mean": hidden.mean(0), "lasttoken": hidden[-1]}
    return by_mode[mode] if mode in by_mode else hidden.amax(0)


def write_random_modules(folder, draw, size):
    """Write the files of a random stack beside a model whose hidden states have this size."""
    mode, size_name = draw.choice([*MODES]), draw.choice(("embedding", "word_embedding"))
    flags = {f"pooling_mode_{flag}": own == mode for own, flag in MODES.items()}
    named = {"pooling_mode": mode} if draw.random() < 0.5 else flags
    pooling = {f"{size_name}_dimension": size, "include_prompt": draw.random() < 0.5, **named}
    stack, generator = [("Pooling", pooling, {})], torch.Generator().manual_seed(draw.randrange(99))
    for kind in draw.choices(("Dense", "LayerNorm", "Normalize", "Dropout"), k=draw.randrange(5)):
        config, weights = {"Dropout": {"dropout": 0.2}}.get(kind, {}), {}
        if kind == "LayerNorm":
            config = {"dimension": size}
            weights = {name: torch.randn(size, generator=generator) for name in ("weight", "bias")}
            weights = {f"norm.{name}": tensor for name, tensor in weights.items()}
        elif kind == "Dense":
            inputs, size = size, draw.choice((24, 64))
            config = {"in_features": inputs, "out_features": size, "bias": draw.random() < 0.7}
            config["activation_function"] = draw.choice([*ACTIVATIONS])
            weights["linear.weight"] = torch.randn(size, inputs, generator=generator) / 8
            if config["bias"]:
                weights["linear.bias"] = torch.randn(size, generator=generator)
        stack.append((kind, config, weights))
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.Transformer"}]
    for place, (kind, config, weights) in enumerate(stack, start=1):
        part = folder / f"{place}_{kind}"
        part.mkdir()
        (part / "config.json").write_text(json.dumps(config))
        if weights:
            save_file(weights, part / "model.safetensors")
        entry = {"idx": place, "name": str(place), "path": part.name, "type": f"{PACKAGE}.{kind}"}
        modules.append(entry)
    length, is_lower = draw.choice((40, 96)), draw.random() < 0.5
    general = {"prompts": PROMPTS, "truncate_dim": draw.choice((None, 10))}
    general["default_prompt_name"] = draw.choice((None, "query"))
    files = {
        "modules.json": modules,
        "sentence_roberta_config.json": {"max_seq_length": length, "do_lower_case": is_lower},
        "config_sentence_transformers.json": general,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return general["default_prompt_name"], length
