"""The largest messages that are allowed, each of as many pieces as it can have."""

import asyncio

from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import tokenizer_pb2

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside, in_words
from tests.chaos.malformed import GENERATE_ONE, end_of
from tests.server.connection import start

ROUNDS = {Scale.QUICK: 2, Scale.MEDIUM: 50, Scale.LONG: 2_000}
AT_ONCE = 4
"""Calls of each kind."""
MOST_BYTES = 2**20 - 64
MAX_GAP_S = 0.25
"""Longest gap of the good client between two messages of tokens."""
MAX_GROWTH = 64 * 2**20
"""Ten refused messages left 13 MiB when they were kept alive: the quick form would leave 100."""
DETOKENIZE = "/chairlift.v1.TokenizerService/Detokenize"
BAD = ("INVALID_ARGUMENT", "BAD_PARAMETER")
TOO_LONG = ("INVALID_ARGUMENT", "PROMPT_TOO_LONG")
OVER_SHARE = ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
"""What the messages of one caller get whose lists, as they are in memory, exceed its share."""


async def run(scale, lab):
    server = await lab.server(**PACED)
    cases = [*messages()]

    async def storm(num_rounds):
        async with server.channel(max_receive_message_length=-1) as channel:
            for i in range(num_rounds):
                await asyncio.gather(*(send(channel, *case) for case in cases * AT_ONCE))
                lab.progress(f"large messages: {i} rounds")

    # What the first ones take once, arenas and threads, is no growth.
    await storm(1)
    before = await server.inside("figures")
    (alone,), (during,) = await beside(lab, server, storm(ROUNDS[scale]))
    await server.until_idle()
    grown = (await server.inside("figures"))["memory"] - before["memory"]
    if scale is not Scale.QUICK:
        assert during.worst_gap_s < MAX_GAP_S, during
    assert grown < MAX_GROWTH, grown
    good = [in_words(alone, during, "alone"), f"memory {grown / 2**20:+.1f} MiB"]
    num = ROUNDS[scale] * AT_ONCE * len(cases)
    return Figures("large messages", f"{num:,} messages of 1 MiB, {AT_ONCE} of a kind", good)


async def send(channel, method, message, expected):
    unary = channel.unary_stream(method)
    end = await end_of(unary(message))
    assert end in {expected, OVER_SHARE}, (method, end, expected)


def messages():
    """Every kind: method, message and the status that it gets."""
    for command, expected in (
        (repeated(lambda start, num: start.chat.messages.extend(num * [number()]), 9), BAD),
        (repeated(lambda start, num: parts(start).extend(num * [pb.ContentPart()]), 2), BAD),
        (repeated(arguments, 20), BAD),
        (repeated(nulls, 4), BAD),
        (repeated(lambda start, num: start.stopping.stop_token_ids.extend(num * [1]), 1), BAD),
        (repeated(lambda start, num: start.stopping.stop.extend(num * ["a"]), 3), BAD),
        (repeated(lambda start, num: start.token_ids.ids.extend(num * [1]), 1), TOO_LONG),
    ):
        message = pb.GenerateOneRequest(start=command)
        yield GENERATE_ONE, message.SerializeToString(), expected
    cut = repeated(lambda start, num: start.token_ids.ids.extend(num * [1]), 1)
    cut.truncate_prompt = 3
    yield GENERATE_ONE, pb.GenerateOneRequest(start=cut).SerializeToString(), ("OK", "")
    few = tokenizer_pb2.DetokenizeRequest(token_ids=[1] * (2**20 // 8))
    yield DETOKENIZE, few.SerializeToString(), ("OK", "")
    many = tokenizer_pb2.DetokenizeRequest(token_ids=[1] * MOST_BYTES)
    yield DETOKENIZE, many.SerializeToString(), BAD


def number():
    return pb.ChatMessage(role="u", text="a")


def parts(command):
    return command.chat.messages.add(role="u").parts.parts


def arguments(command, num):
    command.chat.messages.append(number())
    for i in range(num):
        command.chat.template_arguments.fields[f"{i:06x}"].null_value = 0


def nulls(command, num):
    command.chat.messages.append(number())
    values = command.chat.template_arguments.fields["x"].list_value.values
    for _ in range(num):
        values.add().null_value = 0


def repeated(fill, num_bytes):
    """A request with as many pieces of so many bytes as a message holds."""
    command = start("large", prompt=[1], max_tokens=3).start
    fill(command, (MOST_BYTES - 256) // num_bytes)
    assert command.ByteSize() < MOST_BYTES
    return command
