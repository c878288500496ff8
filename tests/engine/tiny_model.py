"""A Llama of a few thousand parameters with a tokenizer, written to a folder by `transformers`."""

import json
import random
import shutil

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.model import families

VOCAB_SIZE = 390
"""Wider than the tokenizer, as in many checkpoints."""
MAX_MODEL_LEN = 256
EOS = 0

WORDS = (
    *("lift", "chair", "snow", "slope", "ride", "stop", "go", "up", "one", "two", "three"),
    *("Ärger", "größe", "서울", "日本", "🎿", "❄️", "né"),
)

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write(folder, seed=0):
    """Write the checkpoint and return the reference model (eager, float32)."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        bos_token_id=None,
        eos_token_id=EOS,
        attn_implementation="eager",
        dtype="float32",
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCAB_SIZE - 10, pre_tokenizers.ByteLevel.alphabet())
    return model


def write_family(folder, family):
    """Write a small model of a family with a tokenizer; `family` is a key of its table."""
    families.save(families.build(family, vocab_size=VOCAB_SIZE), folder)
    write_tokenizer(folder, VOCAB_SIZE - 10)


def write_tokenizer(folder, vocab_size, alphabet=()):
    """Write a byte-level tokenizer and a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<eos>"],
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    draw = random.Random(0)
    tokenizer.train_from_iterator(
        (" ".join(draw.choices(WORDS, k=12)) for _ in range(200)), trainer
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)


def copy_with_template(source, folder, template):
    """Copy the checkpoint, with another chat template and room for long prompts; return where."""
    shutil.copytree(source, folder)
    (folder / "chat_template.jinja").write_text(template)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    return folder


def prompts(num=8, seed=0, vocab_size=VOCAB_SIZE):
    """Return prompts of many lengths, half of which begin alike for two blocks."""
    draw = random.Random(seed)
    shared = [draw.randrange(1, vocab_size) for _ in range(40)]
    lengths = [1, 3, 16, 17, 33, 50, 70, 97]
    return [
        (shared[: lengths[i % 8]] if i % 2 else [])
        + [draw.randrange(1, vocab_size) for _ in range(lengths[i % 8])]
        for i in range(num)
    ]
