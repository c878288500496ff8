"""The fields of the API that are not honoured: which are ignored, and which only if they are off.

A field that cannot change the answer is ignored; one that could is honoured or refused by name. The
lists stand in docs/openai.md, too, and a test holds them against the types of the `openai` package.
"""

from typing import Final

_OF_CALLERS: Final = (
    # Names of the caller's own users and caches: tenants and prefixes are told apart without.
    *("user", "safety_identifier", "prompt_cache_key", "metadata", "client_metadata"),
    *("prompt_cache_options", "prompt_cache_retention"),
    # There is one tier, and nothing is kept: the response says so.
    *("service_tier", "store"),
    # Of vLLM: a label of the request, and its place in a queue that this server orders itself.
    *("request_id", "priority"),
    # No input has media.
    "mm_processor_kwargs",
)

IGNORED_OF_CHAT: Final = (
    *_OF_CALLERS,
    # It makes an answer come sooner, and not another one.
    "prediction",
)
IGNORED_OF_COMPLETIONS: Final = _OF_CALLERS
IGNORED_OF_RESPONSES: Final = (
    *_OF_CALLERS,
    # They bound or shape what this server never does: calls of its own tools, work without a
    # client, images, programs of OpenAI's.
    *("max_tool_calls", "background_options", "image", "access_programs"),
)
IGNORED_OF_VECTORS: Final = _OF_CALLERS

NEUTRAL: Final = {
    "use_beam_search": False,
    "length_penalty": 1,
    "spaces_between_special_tokens": True,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "logits_processors": [],
    "vllm_xargs": {},
    "kv_transfer_params": {},
}
"""Fields of vLLM that are not implemented, and their values that change nothing."""

NEUTRAL_OF_CHAT: Final = {
    **NEUTRAL,
    "best_of": 1,
    "echo": False,
    "continue_final_message": False,
    "add_special_tokens": False,
    "include_reasoning": True,
    "documents": [],
}

REFUSED_OF_CHAT: Final = ("functions", "audio", "web_search_options", "moderation")
REFUSED_OF_RESPONSES: Final = ("context_management", "prompt", "moderation")
