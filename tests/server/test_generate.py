"""One stream, many requests: what `Generate` promises when all goes well."""

import asyncio

import grpc
from chairlift.v1 import generation_pb2 as pb

from tests.engine import tiny_model
from tests.server.connection import cancel, next_event, receive, start, until


async def test_a_prompt_is_streamed_token_by_token(serve):
    async with serve() as server:
        received = await server.say(start("a", max_tokens=8))
        assert received.status.code is grpc.StatusCode.OK
        kinds = received.kinds("a")
        assert kinds[0] == "accepted"
        assert kinds[-1] == "finished"
        assert set(kinds[1:-1]) == {"tokens"}
        assert len(received.tokens("a")) == 8
        accepted = received.of("a")[0].accepted
        assert accepted.num_prompt_tokens == 3
        assert len(accepted.handle) >= 16
        finished = received.end("a").finished
        assert finished.reason == pb.FINISH_REASON_LENGTH
        assert (finished.usage.prompt_tokens, finished.usage.output_tokens) == (3, 8)
        assert not finished.HasField("timeline")


async def test_sequence_numbers_rise_and_only_the_last_event_is_last(serve):
    async with serve() as server:
        received = await server.say(start("a"), start("b", prompt=[5] * 40))
        for request_id in ("a", "b"):
            numbers = [event.number for event in received.of(request_id)]
            assert numbers == sorted(set(numbers))
            assert numbers[0] == 1
            assert received.end(request_id).HasField("finished")


async def test_many_requests_of_one_stream_get_the_answers_they_get_alone(serve):
    prompts = tiny_model.prompts(24)
    commands = [start(f"r{i}", prompt=prompt, max_tokens=12) for i, prompt in enumerate(prompts)]
    async with serve() as server:
        together = await server.say(*commands)
        for i, command in enumerate(commands):
            alone = await server.say(command)
            assert alone.tokens(f"r{i}") == together.tokens(f"r{i}")
            assert alone.text(f"r{i}") == together.text(f"r{i}")


async def test_one_message_carries_the_events_of_all_requests_of_a_step(serve):
    async with serve() as server:
        commands = [start(f"r{i}", max_tokens=16) for i in range(8)]
        received = await server.say(*commands)
        # Eight rows, at least sixteen steps; one message per request and step would be 128.
        assert received.num_messages < 64


async def test_half_close_without_a_command_is_ok_and_empty(serve):
    async with serve() as server:
        received = await server.say()
        assert (received.events, received.status.code) == ([], grpc.StatusCode.OK)


async def test_half_close_does_not_cancel(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=100))
        await next_event(call, "accepted")
        await call.done_writing()
        received = await receive(call)
        assert received.end("a").finished.reason == pb.FINISH_REASON_LENGTH


async def test_an_empty_request_id_is_filled(serve):
    async with serve() as server:
        received = await server.say(start(""), start("a"), start(""))
        ids = {event.request_id for event in received.events}
        assert len(ids) == 3
        assert "" not in ids
        assert all(received.end(request_id).HasField("finished") for request_id in ids)


async def test_an_id_can_be_used_again_once_its_request_has_ended(serve):
    async with serve() as server:
        call = server.generation.Generate()
        for _ in range(3):
            await call.write(start("a", max_tokens=2))
            events = await next_event(call, "finished")
            assert events[-1].last
        await call.done_writing()
        assert (await receive(call)).events == []


async def test_cancel_ends_the_request_with_what_there_is(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=200))
        await call.write(start("b", max_tokens=20))
        await next_event(call, "tokens")
        await call.write(cancel("a"))
        await call.done_writing()
        received = await receive(call)
        assert received.status.code is grpc.StatusCode.OK
        finished = received.end("a").finished
        assert finished.reason == pb.FINISH_REASON_CANCELLED
        assert 0 < finished.usage.output_tokens < 200
        assert received.end("b").finished.reason == pb.FINISH_REASON_LENGTH
        await server.until_idle()


async def test_cancel_right_after_start_ends_the_request(serve):
    async with serve() as server:
        received = await server.say(start("a", max_tokens=200), cancel("a"))
        assert received.kinds("a")[0] == "accepted"
        assert received.end("a").finished.reason == pb.FINISH_REASON_CANCELLED


async def test_cancel_of_an_unknown_or_ended_id_is_nothing(serve):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(cancel("unknown"))
        await call.write(start("a", max_tokens=1))
        await next_event(call, "finished")
        await call.write(cancel("a"))
        await call.done_writing()
        received = await receive(call)
        assert (received.events, received.status.code) == ([], grpc.StatusCode.OK)


async def test_breaking_the_call_cancels_its_requests(serve):
    async with serve() as server:
        call = server.generation.Generate()
        for i in range(12):
            await call.write(start(f"r{i}", max_tokens=250))
        num_accepted = 0
        while num_accepted < 12:
            num_accepted += sum(e.HasField("accepted") for e in (await call.read()).events)
        call.cancel()
        await until(lambda: server.num_ended("cancelled") == 12)
        await server.until_idle()


async def test_the_deadline_of_the_call_cancels_its_requests(serve):
    async with serve() as server:
        call = server.generation.Generate(timeout=0.5)
        # However fast the model is: it waits for more credit.
        await call.write(start("a", max_tokens=253, credit=5))
        received = await receive(call)
        assert received.status.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await server.until_idle()


async def test_interval_groups_tokens(serve):
    async with serve() as server:
        output = pb.Output(token_ids=True, interval=4)
        received = await server.say(start("a", max_tokens=10, output=output))
        counts = [e.tokens.num_tokens for e in received.of("a") if e.HasField("tokens")]
        # 1, 4, 4, 1; larger where the writer was behind.
        assert sum(counts) == 10
        assert len(counts) <= 4
        assert all(count >= 4 for count in counts[1:-1])


async def test_interval_0_is_one_event_at_the_end(serve):
    async with serve() as server:
        output = pb.Output(token_ids=True, interval=0)
        received = await server.say(start("a", max_tokens=10, output=output))
        assert received.kinds("a") == ["accepted", "tokens", "finished"]
        assert received.of("a")[1].tokens.num_tokens == 10


async def test_output_says_what_comes_back(serve):
    async with serve() as server:
        ids_only = pb.Output(text=False, token_ids=True, timeline=True)
        received = await server.say(
            start("text", output=pb.Output()),
            start("ids", output=ids_only),
            start("logprobs", output=pb.Output(logprobs=0)),
        )
        assert received.text("text")
        assert not received.tokens("text")
        assert not received.text("ids")
        assert len(received.tokens("ids")) == 8
        timeline = received.end("ids").finished.timeline
        assert timeline.queued.ToNanoseconds() >= 0
        assert timeline.decode.ToNanoseconds() > 0
        logprobs = [e.tokens for e in received.of("logprobs") if e.HasField("tokens")]
        assert all(len(t.logprobs.logprobs) == t.num_tokens for t in logprobs)
        # A greedy token is the likeliest.
        assert all(set(t.logprobs.ranks) == {1} for t in logprobs)
        assert all(p <= 0 for t in logprobs for p in t.logprobs.logprobs)


async def test_text_and_chat_prompts_are_tokenized(serve):
    async with serve() as server:
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", text="ride the lift")])
        parts = pb.ContentParts(
            parts=[pb.ContentPart(text="ride "), pb.ContentPart(text="the lift")]
        )
        in_parts = pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)])
        same = "<user>ride the lift\n<assistant>"
        received = await server.say(
            start("chat", prompt=chat),
            start("parts", prompt=in_parts),
            start("text", prompt=same, add_special_tokens=False),
        )
        assert received.tokens("chat") == received.tokens("text") == received.tokens("parts")


async def test_a_seed_draws_the_same_again(serve):
    async with serve() as server:
        drawn = pb.Sampling(temperature=1.0, seed=7)
        first = await server.say(start("a", sampling=drawn), start("b", sampling=drawn))
        assert first.tokens("a") == first.tokens("b")
        unseeded = await server.say(start("a", sampling=pb.Sampling(temperature=1.0)))
        seed = unseeded.of("a")[0].accepted.seed
        again = await server.say(start("a", sampling=pb.Sampling(temperature=1.0, seed=seed)))
        assert again.tokens("a") == unseeded.tokens("a")


async def test_a_stop_string_is_named_and_cut(serve):
    async with serve() as server:
        text = (await server.say(start("a", max_tokens=40))).text("a")
        stop = next(c for c in text[4:] if c.isascii() and c.isprintable())
        stopping = pb.Stopping(max_tokens=40, ignore_eos=True, stop=[stop])
        received = await server.say(start("a", stopping=stopping))
        finished = received.end("a").finished
        assert finished.reason == pb.FINISH_REASON_STOP
        assert finished.stop == stop
        assert received.text("a") == text[: text.index(stop)]


async def test_two_streams_may_use_the_same_id(serve):
    async with serve() as server:
        first, second = await asyncio.gather(
            server.say(start("a", prompt=[1, 2, 3])), server.say(start("a", prompt=[9, 8, 7]))
        )
        assert first.tokens("a") != second.tokens("a")
