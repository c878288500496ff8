"""Quantize a folder as users do, with llm-compressor or GPTQModel.

    python quantize.py BASE TEXT FORMAT FOLDER

Run in the environment of the tool, without Chairlift. Formats of llm-compressor are its schemes,
with `awq-` before those that its AWQ calibrates; `gptqmodel-BITS-GROUP` are those of GPTQModel.
"""

import sys
from pathlib import Path

NUM_SAMPLES = 16
HEAD = "lm_head"


def samples(text: Path) -> list[str]:
    """Return the texts of the calibration."""
    content = text.read_text(encoding="utf-8")
    size = len(content) // NUM_SAMPLES
    return [content[start * size : (start + 1) * size] for start in range(NUM_SAMPLES)]


def compress(base: str, text: Path, scheme: str, folder: str) -> None:
    """Quantize with llm-compressor."""
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.awq import AWQModifier
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not torch.cuda.is_available():
        # Its AWQ pins memory, which fails without a GPU.
        torch.Tensor.pin_memory = lambda tensor: tensor  # type: ignore[method-assign, assignment]
    kind = QuantizationModifier
    if scheme.startswith("awq-"):
        kind, scheme = AWQModifier, scheme.removeprefix("awq-")
    elif scheme.startswith("gptq-"):
        kind, scheme = GPTQModifier, scheme.removeprefix("gptq-")
    if (bits := {"W4A16": 4, "W8A16": 8}.get(scheme.removesuffix("_ASYM"))) is not None:
        # The widths of this model are multiples of 64, not of the 128 of the named schemes.
        weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 64}
        weights["symmetric"] = not scheme.endswith("_ASYM")
        options = {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    else:
        options = {"targets": "Linear", "scheme": scheme}
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(base)
    oneshot(
        model=model,
        dataset=Dataset.from_dict({"text": samples(text)}),
        recipe=kind(ignore=[HEAD], **options),
        max_seq_length=256,
        num_calibration_samples=NUM_SAMPLES,
        processor=tokenizer,
    )
    model.save_pretrained(folder, save_compressed=True)
    tokenizer.save_pretrained(folder)


def quantize_gptq(base: str, text: Path, bits: int, group: int, folder: str) -> None:
    """Quantize with GPTQModel."""
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(bits=bits, group_size=group, desc_act=False, device="cpu")
    model = GPTQModel.load(base, config)
    model.quantize(samples(text), batch_size=1)
    model.save(folder)


def main() -> None:
    """Quantize as the command line says."""
    base, text, name, folder = sys.argv[1:]
    if name.startswith("gptqmodel-"):
        bits, group = name.split("-")[1:]
        quantize_gptq(base, Path(text), int(bits), int(group), folder)
    else:
        compress(base, Path(text), name, folder)


if __name__ == "__main__":
    main()
