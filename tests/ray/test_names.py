import numpy as np
from chairlift.ray.forward.names import Naming
from chairlift.v1 import generation_pb2 as pb

NAMING = Naming()


def names(start, tenant="a", naming=NAMING):
    return list(naming.of_start(start, tenant).names)


def ids(*values):
    return pb.Start(token_ids=pb.TokenIds(ids=values))


def chat(*texts):
    return pb.Start(chat=pb.Chat(messages=[pb.ChatMessage(role="user", text=t) for t in texts]))


def num_shared(first, second):
    return int(np.cumprod([a == b for a, b in zip(first, second, strict=False)]).sum())


def test_equal_beginnings_have_equal_names_up_to_the_piece_that_differs():
    first, second = names(ids(*range(640))), names(ids(*range(300), 7, *range(301, 640)))
    assert len(first) == len(second) == 10
    assert num_shared(first, second) == 4
    assert names(ids(*range(64))) == first[:1]
    assert names(ids(*range(1, 641)))[0] != first[0]


def test_a_conversation_that_grows_keeps_the_names_of_its_turns():
    turns = ["x" * 600, "y" * 600, "z" * 600]
    shorter, longer = names(chat(*turns[:2])), names(chat(*turns))
    assert longer[: len(shorter)] == shorter
    assert len(longer) > len(shorter) > 0


def test_tenants_adapters_salts_and_processes_share_no_name():
    text = "once upon a time " * 100
    starts = [
        pb.Start(text=text),
        pb.Start(text=text, adapter="x"),
        pb.Start(text=text, prefix_cache=pb.PrefixCache(salt="x")),
    ]
    found = [names(start, tenant) for start in starts for tenant in ("a", "b")]
    found.append(names(starts[0], naming=Naming()))
    assert len({name for some in found for name in some}) == sum(map(len, found))


def test_a_body_is_named_from_its_prompt_on():
    prompt = b'"messages": [{"role": "user", "content": "' + b"x" * 2000 + b'"}]'
    first = NAMING.of_body(b'{"temperature": 1, ' + prompt + b"}", "a")
    second = NAMING.of_body(b'{"max_tokens": 12, "stream": true, ' + prompt + b"}", "a")
    assert list(first.names) == list(second.names)
    assert len(first.names) == 7


def test_the_number_of_names_is_bounded_whatever_the_prompt():
    for start in (ids(*range(100_000)), pb.Start(text="x" * 900_000), chat(*["x"] * 100_000)):
        assert 0 < len(NAMING.of_start(start, "a").names) <= 512
    assert NAMING.of_start(pb.Start(), "a").num_tokens == 1
