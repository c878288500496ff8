"""Builds `Start` messages from plain Python values."""

from collections.abc import Sequence

from google.protobuf import duration_pb2

from chairlift.types import Chat, Prompt
from chairlift.v1 import generation_pb2 as pb


def new_start(
    prompt: Prompt,
    *,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    n: int | None = None,
    stop: Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    token_ids: bool = False,
    logprobs: bool = False,
    timeline: bool = False,
    interval: int | None = None,
    queue_timeout_s: float | None = None,
    time_to_first_token_s: float | None = None,
    time_limit_s: float | None = None,
    priority: int | None = None,
    credit: int | None = None,
    model: str = "",
    request_id: str = "",
) -> pb.Start:
    """Gives the message of one request; what is left out takes the server's default.

    Args:
        prompt: Text, token ids or a conversation.
        max_tokens: Longest answer.
        min_tokens: Shortest answer.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: In (0, 1].
        min_p: In [0, 1].
        seed: For the same draws again.
        n: Answers; each draws for itself.
        stop: Texts that end the answer.
        stop_token_ids: Tokens that end the answer, beside the model's own.
        ignore_eos: Go on after the model's own end tokens.
        token_ids: Send token ids beside text.
        logprobs: Send the log probability and rank of each token.
        timeline: Send where the time went, with the last event.
        interval: Tokens per event after the first; 0 is one event at the end.
        queue_timeout_s: Fail when not started by then.
        time_to_first_token_s: Refuse what would miss this; of equals the most urgent goes first.
        time_limit_s: End by then with what there is.
        priority: -10 to 10, higher first.
        credit: Tokens before the first `credit` of the request; None is no limit.
        model: Empty is the served one.
        request_id: Label, unique among the live requests of the stream; empty is filled.
    """
    start = pb.Start(
        request_id=request_id,
        model=model,
        sampling=pb.Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, n=n
        ),
        stopping=pb.Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=stop,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        ),
        output=pb.Output(
            token_ids=token_ids,
            logprobs=0 if logprobs else None,
            timeline=timeline,
            interval=interval,
        ),
        schedule=pb.Schedule(
            queue_timeout=_duration(queue_timeout_s),
            time_to_first_token=_duration(time_to_first_token_s),
            time_limit=_duration(time_limit_s),
            priority=priority,
        ),
        credit=credit,
    )
    _set_prompt(start, prompt)
    return start


def _set_prompt(start: pb.Start, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        start.text = prompt
    elif isinstance(prompt, Chat):
        start.chat.CopyFrom(_chat(prompt))
    else:
        start.token_ids.ids.extend(prompt)
        start.token_ids.SetInParent()


def _chat(chat: Chat) -> pb.Chat:
    message = pb.Chat(
        messages=[
            pb.ChatMessage(role=turn.role, text=turn.content, name=turn.name)
            for turn in chat.messages
        ],
        add_generation_prompt=chat.add_generation_prompt,
    )
    message.template_arguments.update(dict(chat.template_arguments))
    return message


def _duration(seconds: float | None) -> duration_pb2.Duration | None:
    if seconds is None:
        return None
    whole, nanos = divmod(round(seconds * 1e9), 1_000_000_000)
    return duration_pb2.Duration(seconds=whole, nanos=nanos)
