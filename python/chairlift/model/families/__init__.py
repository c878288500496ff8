"""The model families: one file each, a function from config.json to `ModelSpec` and its names."""

from collections.abc import Mapping

from chairlift.model.families.bamba import BAMBA
from chairlift.model.families.cohere2 import COHERE2
from chairlift.model.families.falcon_h1 import FALCON_H1
from chairlift.model.families.family import Family
from chairlift.model.families.gemma import EMBEDDING_GEMMA, GEMMA2, GEMMA3
from chairlift.model.families.gemma4 import GEMMA4, GEMMA4_WITH_VISION
from chairlift.model.families.gpt_oss import GPT_OSS
from chairlift.model.families.granite import GRANITE, GRANITE_HYBRID
from chairlift.model.families.hybrids import (
    LFM2,
    LFM2_MOE,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_5_MOE_WITH_VISION,
    QWEN3_5_WITH_VISION,
    QWEN3_NEXT,
)
from chairlift.model.families.llama import LLAMA
from chairlift.model.families.ministral3 import MINISTRAL3
from chairlift.model.families.mistral import MISTRAL
from chairlift.model.families.mixtures import ERNIE_MOE, GRANITE_MOE, MIXTRAL, QWEN3_MOE
from chairlift.model.families.nemotron_h import NEMOTRON_H
from chairlift.model.families.olmo import OLMO2, OLMO3, OLMO_HYBRID
from chairlift.model.families.phi3 import PHI3
from chairlift.model.families.qwen2 import QWEN2
from chairlift.model.families.qwen3 import QWEN3
from chairlift.model.families.smollm3 import SMOLLM3
from chairlift.model.families.starcoder2 import STARCODER2

__all__ = ["BIDIRECTIONAL", "FAMILIES", "Family"]

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4ForConditionalGeneration": GEMMA4_WITH_VISION,
    "Phi3ForCausalLM": PHI3,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "GraniteForCausalLM": GRANITE,
    "SmolLM3ForCausalLM": SMOLLM3,
    "Ministral3ForCausalLM": MINISTRAL3,
    "Starcoder2ForCausalLM": STARCODER2,
    "Cohere2ForCausalLM": COHERE2,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "MixtralForCausalLM": MIXTRAL,
    "GraniteMoeForCausalLM": GRANITE_MOE,
    "Ernie4_5_MoeForCausalLM": ERNIE_MOE,
    "Lfm2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": LFM2_MOE,
    "Qwen3_5ForCausalLM": QWEN3_5,
    "Qwen3_5ForConditionalGeneration": QWEN3_5_WITH_VISION,
    "Qwen3_5MoeForCausalLM": QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_5_MOE_WITH_VISION,
    "Qwen3NextForCausalLM": QWEN3_NEXT,
    "GraniteMoeHybridForCausalLM": GRANITE_HYBRID,
    "BambaForCausalLM": BAMBA,
    "NemotronHForCausalLM": NEMOTRON_H,
    "FalconH1ForCausalLM": FALCON_H1,
    "OlmoHybridForCausalLM": OLMO_HYBRID,
    "GptOssForCausalLM": GPT_OSS,
}
"""By the name in `architectures` of config.json."""

BIDIRECTIONAL: Mapping[str, Family] = {"Gemma3TextModel": EMBEDDING_GEMMA}
"""The encoders whose layers are those of a decoder, by the same name."""
