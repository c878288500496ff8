"""The vectors that a decoder gives: of the last token, after the last norm."""

from pathlib import Path

from chairlift.api.errors import ModelError
from chairlift.api.pooled import PoolingAbilities
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.sentence import load_sentence_config


def decoder_abilities(folder: Path, config: ModelConfig, max_model_len: int) -> PoolingAbilities:
    """Return what a decoder gives besides text: each tells its last token's vector.

    Raises:
        ModelError: The files of sentence-transformers ask for another pooling, or dense layers.
    """
    sentence = load_sentence_config(folder, "last") if folder.is_dir() else None
    if sentence is not None:
        needed = "layers behind it" if sentence.layers else sentence.pooling.mode
        if needed == "last" and sentence.lower_case:
            needed = "do_lower_case"
        if needed != "last":
            message = (
                f"{folder}: modules.json: expected the pooling last of a decoder, got {needed}"
            )
            raise ModelError(message)
        sentence.vector_size(folder, config.spec.hidden_size)
    # One token of the context is the answer's, which is not looked at.
    longest = max_model_len - 1
    if sentence is not None and sentence.max_length is not None:
        longest = min(longest, sentence.max_length)
    return PoolingAbilities(
        size=config.spec.hidden_size,
        poolings=("last",),
        default_pooling="last",
        normalize=True if sentence is None else sentence.normalize,
        max_length=longest,
        prompts=() if sentence is None else tuple(sentence.prompts.items()),
        default_prompt=None if sentence is None else sentence.default_prompt,
        default_dimensions=None if sentence is None else sentence.dimensions,
        similarity="cosine" if sentence is None else sentence.similarity,
        generates=config.has_head,
    )
