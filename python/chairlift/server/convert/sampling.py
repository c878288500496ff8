"""The proto's `Sampling` to that of `chairlift.api.types`."""

from chairlift.api import types
from chairlift.api.checks import check_count
from chairlift.engine.prepare.sampling import (
    MAX_BAD_WORDS,
    MAX_BANNED_IDS,
    MAX_BREAKERS,
    MAX_LOGIT_BIASES,
)
from chairlift.server.convert.fields import optional
from chairlift.v1 import generation_pb2 as pb


def to_sampling(sampling: pb.Sampling) -> types.Sampling:
    """Convert the message; None stands for what is not set.

    Raises:
        RequestError: A list is too long.
    """
    breakers, has_breakers = (
        sampling.dry_sequence_breakers,
        sampling.HasField("dry_sequence_breakers"),
    )
    # Long lists are refused before they are converted.
    check_count(sampling.logit_bias, "sampling.logit_bias", MAX_LOGIT_BIASES)
    check_count(breakers.strings, "sampling.dry_sequence_breakers", MAX_BREAKERS)
    check_count(sampling.banned_token_ids, "sampling.banned_token_ids", MAX_BANNED_IDS)
    check_count(sampling.bad_words, "sampling.bad_words", MAX_BAD_WORDS)
    return types.Sampling(
        temperature=optional(sampling, "temperature", None),
        top_k=optional(sampling, "top_k", None),
        top_p=optional(sampling, "top_p", None),
        min_p=optional(sampling, "min_p", None),
        seed=optional(sampling, "seed", None),
        n=optional(sampling, "n", 1),
        repetition_penalty=optional(sampling, "repetition_penalty", None),
        presence_penalty=optional(sampling, "presence_penalty", None),
        frequency_penalty=optional(sampling, "frequency_penalty", None),
        logit_bias=dict(sampling.logit_bias),
        typical_p=optional(sampling, "typical_p", None),
        top_n_sigma=optional(sampling, "top_n_sigma", None),
        dry_multiplier=optional(sampling, "dry_multiplier", None),
        dry_base=optional(sampling, "dry_base", None),
        dry_allowed_length=optional(sampling, "dry_allowed_length", None),
        dry_sequence_breakers=tuple(breakers.strings) if has_breakers else None,
        dry_penalty_last_n=optional(sampling, "dry_penalty_last_n", None),
        xtc_probability=optional(sampling, "xtc_probability", None),
        xtc_threshold=optional(sampling, "xtc_threshold", None),
        allowed_token_ids=list(sampling.allowed_token_ids),
        banned_token_ids=list(sampling.banned_token_ids),
        bad_words=tuple(sampling.bad_words),
    )
