"""Models with random weights, made on the spot: speed does not depend on what they say."""

import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

VOCAB_SIZE: Final = 32_000
_ENDS: Final = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def _llama() -> "PreTrainedConfig":
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        **_ENDS,
    )


def _llama_1b() -> "PreTrainedConfig":
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **_ENDS,
    )


def _qwen3_moe() -> "PreTrainedConfig":
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=1024,
        intermediate_size=2048,
        moe_intermediate_size=384,
        num_experts=48,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        num_hidden_layers=18,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        **_ENDS,
    )


def _qwen3_5() -> "PreTrainedConfig":
    from transformers import Qwen3_5TextConfig

    return Qwen3_5TextConfig(
        vocab_size=248_320,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        layer_types=6 * [*3 * ["linear_attention"], "full_attention"],
        tie_word_embeddings=True,
        max_position_embeddings=32_768,
    )


SHAPES: Final[Mapping[str, tuple[str, Callable[[], "PreTrainedConfig"]]]] = {
    "llama": ("random Llama of 336 M parameters", _llama),
    "llama-1b": ("random Llama of 1.2 B parameters", _llama_1b),
    "qwen3-moe": ("random Qwen3-MoE of 1.1 B parameters, 4 of 48 experts", _qwen3_moe),
    "qwen3.5": ("random Qwen 3.5 of 0.8 B parameters", _qwen3_5),
}
"""What `make_model` makes: in words, and its configuration."""


def make_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer, without the network.

    It learns from the sources of Python's standard library: the converters of the peers want a real
    one.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train([str(path) for path in sources], trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=bpe, **names).save_pretrained(folder)


def make_model(folder: Path, shape: str = "llama") -> None:
    """Write a bfloat16 checkpoint with its tokenizer, without the network."""
    import torch
    from transformers import AutoModelForCausalLM

    make_tokenizer(folder)
    torch.manual_seed(0)
    _, config = SHAPES[shape]
    AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16).save_pretrained(folder)
