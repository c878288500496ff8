"""A Llama of 336 M parameters with random weights: speed does not depend on what they say."""

import sysconfig
from pathlib import Path

VOCAB_SIZE = 32_000


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


def make_model(folder: Path) -> None:
    """Write a bfloat16 checkpoint with its tokenizer, without the network."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
