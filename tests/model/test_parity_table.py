"""The table of families in docs/families.md says what is compared, and what runs where."""

from pathlib import Path

from chairlift.checkpoints.gguf.config import ARCHITECTURES
from chairlift.engine.loading.devices import layer_unsupported_reason
from chairlift.model.config import ModelConfig
from chairlift.model.families import FAMILIES as OURS
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from tests.model.families import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
BEGIN, END = "<!-- parity -->\n", "<!-- end of parity -->\n"
TEXT_MODELS = {
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
"""Architectures with other parts, which are ignored: `test_text_models.py` compares them."""
SHARED_KINDS = {
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "BambaForCausalLM": "granitehybrid",
    "Olmo3ForCausalLM": "olmo2",
}
HEADER = """\
| `architectures` | compared with `transformers` as | adapters | GGUF | GPU |
| --- | --- | --- | --- | --- |
"""


def test_every_family_is_compared():
    assert {architecture(name) for name in FAMILIES} | set(TEXT_MODELS) == set(OURS)


def test_the_page_has_the_table(pretrained):
    page = PAGE.read_text(encoding="utf-8")
    expected = table(lambda name: ModelConfig.load(pretrained(name)[1]).spec)
    assert page.partition(BEGIN)[2].partition(END)[0] == expected, expected


def architecture(name):
    config_class, _ = FAMILIES[name]
    return MODEL_FOR_CAUSAL_LM_MAPPING[config_class].__name__


def table(spec_of):
    """Return a row for each architecture."""
    in_gguf = {family: [] for family in OURS}
    for kind, family in ARCHITECTURES.items():
        in_gguf[family].append(f"`{kind}`")
    # Their metadata have the name of another family, and what they hold tells them apart.
    for family, kind in SHARED_KINDS.items():
        in_gguf[family].append(f"`{kind}`")
    rows = []
    for family in OURS:
        text_model = TEXT_MODELS.get(family, family)
        names = [name for name in FAMILIES if architecture(name) == text_model]
        variants = "; ".join(name.partition(", ")[2] or "plain" for name in names)
        if text_model != family:
            variants = f"its text model, as `{text_model}`"
        specs = [spec_of(name) for name in names]
        has_experts = any(spec.router_size > 0 for spec in specs)
        runs = [
            name
            for name, spec in zip(names, specs, strict=True)
            if not layer_unsupported_reason(spec)
        ]
        where = "yes" if len(runs) == len(names) else "in part" if runs else "no"
        adapters = "all but experts" if has_experts else "all"
        if any(spec.has_state for spec in specs):
            adapters = "no"
        gguf = ", ".join(in_gguf[text_model]) or "no"
        rows.append(f"| `{family}` | {variants} | {adapters} | {gguf} | {where} |\n")
    return HEADER + "".join(rows)
