"""What a client collects of an answer."""

from chairlift.api.types import ToolCall
from chairlift.client.answer import Answer
from chairlift.v1 import generation_pb2 as pb


def answer(*pieces: pb.Tokens) -> Answer:
    """Return an answer of these pieces."""
    answer = Answer(0)
    for piece in pieces:
        answer.add(piece)
    return answer


def part(position: int, call_id: str = "", name: str = "", arguments: str = "") -> pb.ToolCall:
    return pb.ToolCall(index=position, id=call_id, name=name, arguments_json=arguments)


def test_parts_of_calls_are_joined_by_their_position_whatever_their_names_are():
    got = answer(
        pb.Tokens(tool_calls=[part(0, "c0", "", '{"a"'), part(1, "c1", "look", "{")]),
        pb.Tokens(tool_calls=[part(0, arguments=": 1}"), part(1, arguments="}")]),
        pb.Tokens(tool_calls=[part(2, "c2", "")]),
    )
    assert got.tool_calls == [
        ToolCall("c0", "", '{"a": 1}'),
        ToolCall("c1", "look", "{}"),
        ToolCall("c2", "", ""),
    ]


def test_a_text_can_be_read_while_it_grows():
    got = answer(pb.Tokens(text="a", reasoning="x", token_ids=[1], num_tokens=1))
    assert (got.text, got.reasoning) == ("a", "x")
    got.add(pb.Tokens(text="b", token_ids=[2, 3], num_tokens=2))
    got.add(pb.Tokens(reasoning="y"))
    assert (got.text, got.reasoning, got.token_ids, got.num_tokens) == ("ab", "xy", [1, 2, 3], 3)


def test_answers_are_equal_however_they_came_in_pieces():
    whole = pb.Tokens(text="abc", num_tokens=3)
    pieces = [pb.Tokens(text=text, num_tokens=1) for text in "abc"]
    assert answer(whole) == answer(*pieces)
    assert answer(whole) != answer(*pieces[:2])
    assert "'abc'" in repr(answer(*pieces))


def test_a_long_answer_is_copied_a_few_times_and_not_once_per_piece():
    """The bytes that are allocated, and not the time that it takes."""
    import tracemalloc

    got, piece = Answer(0), pb.Tokens(text="x" * 64)
    for _ in range(1000):
        got.add(piece)
    tracemalloc.start()
    try:
        got.add(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1000 * 64
    assert got.text == "x" * 64 * 1001
