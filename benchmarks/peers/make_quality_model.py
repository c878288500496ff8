"""Make the checkpoint that `quality.py` compares formats of, and what transformers computes of it.

python make_quality_model.py SMOLLM2.gguf FOLDER IDS.npy LOG_PROBS.npy
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)


def main() -> None:
    """Make the folder unless it exists, and save log probabilities of second halves of windows."""
    gguf, folder, ids_file, out = map(Path, sys.argv[1:])
    if not folder.exists():
        make_model(gguf, folder)
    np.save(out, log_probs(folder, torch.from_numpy(np.load(ids_file)).long()))


def make_model(gguf: Path, folder: Path) -> None:
    """Widen SmolLM2, rotate its residual stream, and round its weights to bfloat16."""
    read = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # The weights are plain by now; a model that says otherwise is not saved.
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    assert isinstance(read.config, LlamaConfig), "of Llama's architecture"
    model = LlamaForCausalLM(read.config)
    model.load_state_dict(read.state_dict())
    rotate(model)
    partial = folder.with_name(f"{folder.name}.partial")
    model.bfloat16().save_pretrained(partial)
    save_tokenizer(gguf, model.config.vocab_size, partial)
    partial.rename(folder)


def save_tokenizer(gguf: Path, vocab_size: int, folder: Path) -> None:
    """Write the tokenizer of a file, less what transformers adds to that of a Llama."""
    read = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    parts = json.loads(read.backend_tokenizer.to_str())
    parts["added_tokens"] = [own for own in parts["added_tokens"] if own["id"] < vocab_size]
    parts["decoder"] = parts["pre_tokenizer"]
    Tokenizer.from_str(json.dumps(parts)).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@torch.no_grad()
def rotate(model: LlamaForCausalLM) -> None:
    """Fold the norms of a Llama into the layers behind them, and turn what lies between.

    A root mean square does not change when its numbers are rotated, as in QuaRot (Ashkboos et al.,
    2024).
    """
    size = model.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    inner = model.model
    head = inner.embed_tokens.weight.detach().clone()
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(_turned(head * inner.norm.weight, turn))
    inner.norm.weight.fill_(1.0)
    inner.embed_tokens.weight = torch.nn.Parameter(_turned(head, turn))
    for layer in inner.layers:
        attention, mlp = layer.self_attn, layer.mlp
        readers = {
            layer.input_layernorm: (attention.q_proj, attention.k_proj, attention.v_proj),
            layer.post_attention_layernorm: (mlp.gate_proj, mlp.up_proj),
        }
        for norm, linears in readers.items():
            for linear in linears:
                linear.weight.copy_(_turned(linear.weight * norm.weight, turn))
            norm.weight.fill_(1.0)
        for linear in (attention.o_proj, mlp.down_proj):
            linear.weight.copy_(_turned(linear.weight.T, turn).T)


def _turned(weight: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    return (weight.double() @ turn).float()


@torch.inference_mode()
def log_probs(folder: Path, windows: torch.Tensor) -> np.ndarray:
    """Return the float32 log probabilities `[W, T / 2, vocab_size]` of second halves."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    half = windows.shape[1] // 2
    halves = [model(ids[None]).logits[0, half - 1 : -1] for ids in windows]
    return torch.stack([torch.log_softmax(own, -1) for own in halves]).numpy()


if __name__ == "__main__":
    main()
