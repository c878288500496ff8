"""`GenerateRequest` to `chairlift.api.types`.

The protocol's fields without presence have vLLM's neutral values where they are 0. A gateway fills
in the model's own defaults, which `GetModelInfo` tells it.
"""

from typing import Final

from chairlift.api import types
from chairlift.api.checks import check_count
from chairlift.api.constraints import MAX_CHOICES
from chairlift.engine.prepare.sampling import MAX_LOGIT_BIASES
from chairlift.engine.prepare.stopping import MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from chairlift.engine.prepare.text_queue import TextLimits
from chairlift.server.convert.fields import bad, optional, unsupported
from chairlift.server.convert.messages import (
    LOGPROBS_INTERVAL,
    DeliveryOptions,
    check_request_id,
)
from chairlift.server.protocols.names import Names
from chairlift.server.protocols.stubs import vllm_engine_pb2 as vllm

NAMES: Final = Names(
    {
        "constraint.choices": "sampling_params.choice.choices",
        "constraint.lark": "sampling_params.grammar",
        "constraint.": "sampling_params.",
        "sampling.": "sampling_params.",
        "stopping.include_stop": "sampling_params.include_stop_str_in_output",
        "stopping.": "sampling_params.",
        "output.": "sampling_params.",
        "truncate_prompt": "sampling_params.truncate_prompt_tokens",
        "token_ids": "tokenized.input_ids",
        "prompt": "input",
    }
)

_OF_OTHER_WORKERS: Final = (
    "kv_transfer_params",
    "mm_inputs",
    "media_refs",
)
"""The older form of `kv_transfer_params_json`, and media."""


def to_request(
    message: vllm.GenerateRequest, *, tenant: str, limits: TextLimits
) -> tuple[types.Request, DeliveryOptions]:
    """Convert a request.

    Args:
        message: The message.
        tenant: Owner of the request.
        limits: A prompt of too many token ids is refused before it is converted.

    Raises:
        RequestError: With the path of the field that is wrong or not supported.
    """
    check_request_id(message.request_id)
    _refuse(message)
    params = message.sampling_params
    with_logprobs = params.HasField("logprobs")
    if with_logprobs and params.logprobs < 0:
        raise bad("sampling_params.logprobs", f"expected 0 to 20, got {params.logprobs}")
    truncate = _truncate(params, limits)
    request = types.Request(
        prompt=_prompt(message, truncate, limits),
        sampling=_sampling(params),
        stopping=_stopping(params),
        output=types.Output(
            logprobs=with_logprobs,
            candidates=params.logprobs,
            skip_special_tokens=params.skip_special_tokens,
        ),
        truncate_prompt=truncate,
        constraint=_constraint(params),
        tenant=tenant,
    )
    output = DeliveryOptions(
        text=False,
        token_ids=True,
        logprobs=with_logprobs,
        timeline=False,
        # Those of a whole answer come as they are computed: they take long to convert at its end.
        interval=1 if message.stream else LOGPROBS_INTERVAL if with_logprobs else 0,
        num_candidates=params.logprobs,
    )
    return request, output


def to_embedding(message: vllm.EmbedRequest, *, tenant: str, limits: TextLimits) -> types.Request:
    """Convert a request for a vector, as `to_request` does.

    Raises:
        RequestError: With the path of the field that is wrong.
    """
    check_request_id(message.request_id)
    if not message.HasField("tokenized"):
        raise bad("tokenized", "expected token ids, got none")
    ids = message.tokenized.input_ids
    limits.check_length(len(ids))
    return types.Request(list(ids), pooling=types.Pooling(), tenant=tenant)


def _refuse(message: vllm.GenerateRequest) -> None:
    """Raise RequestError for the first field that asks for what this server does not do."""
    for name in _OF_OTHER_WORKERS:
        if message.HasField(name):
            raise unsupported(name)
    if message.extra_mm_inputs:
        raise unsupported("extra_mm_inputs")
    # There is one rank, 0.
    if message.data_parallel_rank:
        raise unsupported("data_parallel_rank")
    params = message.sampling_params
    if params.HasField("prompt_logprobs"):
        raise unsupported("sampling_params.prompt_logprobs")
    if params.HasField("structural_tag"):
        raise unsupported("sampling_params.structural_tag")


def _prompt(
    message: vllm.GenerateRequest, truncate: int | None, limits: TextLimits
) -> types.Prompt:
    kind = message.WhichOneof("input")
    if kind == "text":
        return message.text
    if kind != "tokenized":
        raise bad("input", "expected tokenized or text, got none of them")
    ids = message.tokenized.input_ids
    # Tokens that are cut off are not converted, however many they are.
    if truncate is not None:
        ids = ids[-truncate:]
    else:
        limits.check_length(len(ids))
    return list(ids)


def _constraint(params: vllm.SamplingParams) -> types.Constraint | None:
    """Return what the answer must be; it holds from the first token on."""
    match params.WhichOneof("constraint"):
        case "json_schema":
            return types.Constraint(json_schema=params.json_schema)
        case "json_object" if params.json_object:
            return types.Constraint(json_object=True)
        case "regex":
            return types.Constraint(regex=params.regex)
        case "grammar":
            return types.Constraint(lark=params.grammar)
        case "choice":
            if not params.choice.choices:
                raise bad("sampling_params.choice.choices", "expected at least one, got none")
            check_count(params.choice.choices, "sampling_params.choice.choices", MAX_CHOICES)
            return types.Constraint(choices=tuple(params.choice.choices))
        case _:
            return None


def _truncate(params: vllm.SamplingParams, limits: TextLimits) -> int | None:
    """Return how many tokens of the prompt are kept; -1 stands for as many as the model takes."""
    if not params.HasField("truncate_prompt_tokens"):
        return None
    if params.truncate_prompt_tokens == -1:
        return limits.max_context_len - 1
    if params.truncate_prompt_tokens < 1:
        expected = f"expected -1 or at least 1, got {params.truncate_prompt_tokens}"
        raise bad("sampling_params.truncate_prompt_tokens", expected)
    return params.truncate_prompt_tokens


def _sampling(params: vllm.SamplingParams) -> types.Sampling:
    check_count(params.logit_bias, "sampling_params.logit_bias", MAX_LOGIT_BIASES)
    seed = optional(params, "seed", None)
    return types.Sampling(
        temperature=optional(params, "temperature", 1.0),
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
        # A negative seed is the one of 64 bits without a sign that has its bits.
        seed=None if seed is None else seed % 2**64,
        n=params.n or 1,
        repetition_penalty=params.repetition_penalty or 1.0,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
    )


def _stopping(params: vllm.SamplingParams) -> types.Stopping:
    check_count(params.stop, "sampling_params.stop", MAX_STOP_STRINGS)
    check_count(params.stop_token_ids, "sampling_params.stop_token_ids", MAX_STOP_TOKEN_IDS)
    return types.Stopping(
        max_tokens=optional(params, "max_tokens", None),
        min_tokens=params.min_tokens,
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        include_stop=params.include_stop_str_in_output,
    )
