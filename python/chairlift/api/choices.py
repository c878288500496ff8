"""Enums of settings, importable without pydantic."""

from enum import StrEnum


class Batching(StrEnum):
    """When a waiting request may first join the batch."""

    CONTINUOUS = "continuous"
    DYNAMIC = "dynamic"
    STATIC = "static"


class Dtype(StrEnum):
    """Element type of weights and activations; auto is the checkpoint's.

    float32 is a CPU's alone, float16 a GPU's.
    """

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class KvCacheDtype(StrEnum):
    """Element type of keys and values; auto is that of the activations.

    int8 is a CPU's alone, fp8 a GPU's.
    """

    AUTO = "auto"
    INT8 = "int8"
    FP8 = "fp8"


class Device(StrEnum):
    """Where the model runs; auto is a GPU if there is one that can run it."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class ModelImpl(StrEnum):
    """What computes the layers of a decoder.

    chairlift: the families of docs/families.md; transformers: any decoder that attends by its
    `AttentionInterface`, slower, on a CPU.
    """

    CHAIRLIFT = "chairlift"
    TRANSFORMERS = "transformers"


class Quantize(StrEnum):
    """How the weights of linear layers are stored; none is as the element type."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"


class Drafts(StrEnum):
    """Where drafts of the next tokens come from, which a step checks beside the last token.

    lookup: what followed the same tokens before, in the prompt or the answer itself.
    """

    OFF = "off"
    LOOKUP = "lookup"


class InstructionSet(StrEnum):
    """Values of `CHAIRLIFT_CPU`: the kernels use the best set of the machine up to this one."""

    AMX = "amx"
    AVX512_BF16 = "avx512bf16"
    AVX512_VNNI = "avx512vnni"
    AVX512 = "avx512"
    AVX2 = "avx2"
    PORTABLE = "portable"


class ToolFormat(StrEnum):
    """How the model writes function calls; auto is by its chat template, none leaves them text."""

    AUTO = "auto"
    NONE = "none"
    HERMES = "hermes"
    QWEN3_CODER = "qwen3-coder"
    LLAMA3_JSON = "llama3-json"
    MISTRAL = "mistral"
    HARMONY = "harmony"


class ReasoningFormat(StrEnum):
    """How the model marks its reasoning; auto is by its chat template, none leaves it text."""

    AUTO = "auto"
    NONE = "none"
    THINK = "think"
    MISTRAL = "mistral"
    SEED = "seed"
    HARMONY = "harmony"
