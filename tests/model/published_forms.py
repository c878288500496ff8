"""The forms in which well known checkpoints are published, by the family that reads them."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Form(NamedTuple):
    """How the files of a checkpoint differ from those that `transformers` saves today."""

    family: str
    """In `FAMILIES` of the tests."""
    architecture: str = ""
    """In config.json; empty is that of the family."""
    names: tuple[str, str] = ("model.", "model.")
    """How names of tensors begin in a saved model, and what stands there instead."""
    head: str = "lm_head."
    """How the names of the head begin; empty where there is none."""
    config: Mapping[str, Any] = {}
    """Further fields of config.json; None takes one away."""
    generation: Mapping[str, Any] = {}
    """Of generation_config.json."""
    buffers: tuple[str, ...] = ()
    """Names of constants beside the weights."""
    num_shards: int = 1
    gives_text: bool = True


_SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
_CODE = {"AutoConfig": "configuration.Config", "AutoModelForCausalLM": "modeling.Model"}

FORMS = {
    # Qwen3-Embedding: saved by AutoModel, under the architecture with a head.
    "Qwen3-Embedding-0.6B": Form("qwen3, tied, narrow heads", names=("model.", ""), head=""),
    "Qwen3-Embedding-8B": Form(
        "qwen3, alternating window, wide heads, biases",
        names=("model.", ""),
        head="",
        num_shards=3,
        gives_text=False,
    ),
    "Qwen3-Reranker-0.6B": Form("qwen3, tied, narrow heads"),
    "Qwen3-0.6B": Form("qwen3, tied, narrow heads", generation=_SAMPLED),
    "Qwen2.5-0.5B-Instruct": Form(
        "qwen2, tied", generation={**_SAMPLED, "repetition_penalty": 1.1, "pad_token_id": 0}
    ),
    "e5-mistral-7b-instruct": Form(
        "mistral, window", "MistralModel", ("model.", ""), head="", num_shards=2, gives_text=False
    ),
    "bge-multilingual-gemma2": Form(
        "gemma2, soft caps", "Gemma2Model", ("model.", ""), head="", num_shards=2, gives_text=False
    ),
    "a LlamaModel": Form("llama", "LlamaModel", ("model.", ""), head="", gives_text=False),
    "Llama-2-7b-hf": Form(
        "llama",
        config={"pretraining_tp": 1, "rope_scaling": None},
        generation={"max_length": 4096, "do_sample": True, "temperature": 0.6, "top_p": 0.9},
        buffers=tuple(f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(3)),
        num_shards=2,
    ),
    "Llama-3.1-8B-Instruct": Form(
        "llama, llama3 rope, wide heads",
        config={"eos_token_id": [2, 3, 4]},
        generation={"eos_token_id": [2, 3, 4], "do_sample": True, "top_p": 0.9},
        num_shards=4,
    ),
    "a compiled Llama": Form(
        "llama", names=("model.", "_orig_mod.model."), head="_orig_mod.lm_head."
    ),
    "the text of a LLaVA": Form(
        "llama", names=("model.", "language_model.model."), head="language_model.lm_head."
    ),
    "the text of a newer model with images": Form(
        "llama", names=("model.", "model.language_model.")
    ),
    "Phi-4-mini-instruct": Form("phi3, window", config={"auto_map": _CODE}, num_shards=2),
    "ERNIE-4.5-21B-A3B-PT": Form(
        "ernie, a shared expert, a bias of the choice", config={"auto_map": _CODE}
    ),
}
"""By the name of the checkpoint."""
