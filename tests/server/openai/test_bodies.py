"""Bodies of responses, encoded in turns with other work."""

import asyncio

import pytest
from chairlift.server.http.exchange import to_json, to_json_in_turns

CANDIDATES = [{"token": "é", "logprob": -0.5, "bytes": [195, 169]}] * 20
ENTRIES = [{"token": "a", "logprob": -1e-3, "bytes": [97], "top_logprobs": CANDIDATES}] * 300
ANSWER = {
    "id": 'of "one"',
    "choices": [{"index": i, "logprobs": {"content": ENTRIES}} for i in range(4)],
    "usage": None,
}


@pytest.mark.parametrize(
    "value", [ANSWER, {}, [], {"a": [], "b": {}, "c": [[[[[[[[1, 2]]]]]]]]}, "\ud800é", 1.5, None]
)
async def test_a_body_is_the_same_in_turns_and_at_once(value):
    assert await to_json_in_turns(value) == to_json(value)


async def test_other_work_has_its_turn_while_an_answer_is_encoded():
    encoding = asyncio.create_task(to_json_in_turns(ANSWER))
    num_turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns > 50
    assert await encoding == to_json(ANSWER)
