import asyncio
from collections import Counter
from dataclasses import replace

import grpc
import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.client import connect_async
from chairlift.ray.forward.names import NO_PROMPT
from chairlift.ray.forward.replicas import ReplicaInfo
from chairlift.v1 import generation_pb2 as pb
from transformers import AutoModelForCausalLM

from tests.engine import adapters
from tests.server.connection import Status, cancel, start, status_of

LONG = {"max_tokens": 150, "ignore_eos": True, "temperature": 0.0, "queue_timeout_s": 60}


async def answers(client, prompts, **options):
    generations = [client.generate(prompt, **options) for prompt in prompts]
    return await asyncio.gather(*(generation.all() for generation in generations))


def tag_of(generation):
    return generation.handle.partition(".")[0]


async def test_answers_through_the_ingress_are_those_of_the_replicas_on_one_stream(forward):
    prompts = [[3 + n, 5, 8, 13] for n in range(12)]
    options = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0, "token_ids": True}
    async with forward() as ingress:
        async with connect_async(ingress.replicas.find("e0").info.address) as direct:
            expected = await answers(direct, prompts, **options)
        found = await answers(ingress.client, prompts, **options)
        assert [a[0].token_ids for a in found] == [a[0].token_ids for a in expected]
        generations = [ingress.client.generate(prompt, **options) for prompt in prompts]
        await asyncio.gather(*(generation.all() for generation in generations))
        assert Counter(map(tag_of, generations)).keys() == {"e0", "e1"}


async def test_prompts_that_begin_alike_go_to_one_replica_which_has_their_blocks(forward):
    prompt = list(range(3, 3 + 160))
    async with forward() as ingress:
        first = ingress.client.generate(prompt, max_tokens=4)
        await first.all()
        for _ in range(3):
            again = ingress.client.generate([*prompt, 7, 9], max_tokens=4)
            await again.all()
            assert tag_of(again) == tag_of(first)
            assert again.finished.usage.cached_tokens >= 144


async def test_a_request_that_has_no_output_moves_to_another_replica_when_its_own_drains(forward):
    async with forward() as ingress:
        held = [ingress.client.generate([3, n], **LONG) for n in range(40)]
        for generation in held:
            await generation.send()
        # More requests than rows wait; those of the engine that drains are refused by it, and move.
        while min(e.gate.engine().load().num_waiting for e in ingress.engines.values()) == 0:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(ingress.engines["e0"].stop(20))
        found = await asyncio.gather(*(generation.all() for generation in held))
        assert all(answer.num_tokens == 150 for (answer,) in found)
        assert ingress.replicas.find("e0").is_draining
        await stopping


async def test_a_lost_connection_fails_what_has_output_as_unavailable_and_moves_the_rest(forward):
    async with forward() as ingress:
        held = [ingress.client.generate([3, n], **LONG, resume_window_s=20.0) for n in range(40)]
        for generation in held:
            await generation.send()
        streams = [generation.events() for generation in held]
        for events in streams[:4]:
            while not (await anext(events)).HasField("tokens"):
                pass
        lost = ingress.replicas.find(tag_of(held[0]))
        for call in tuple(lost.calls):
            call.cancel()

        async def rest(events):
            try:
                async for _ in events:
                    pass
            except RequestError as error:
                return error
            return None

        errors = [error for error in await asyncio.gather(*map(rest, streams)) if error]
        assert errors
        assert {error.reason for error in errors} == {Reason.ENGINE_DOWN}
        assert {error.reason.code for error in errors} == {"UNAVAILABLE"}
        ended = [generation for generation in held if generation.finished]
        assert len(ended) + len(errors) == len(held)
        assert all(generation.answers[0].num_tokens == 150 for generation in ended)
        # The engine lives: the handle and the number of the last event are the resume token.
        broken = next(g for g in held if not g.finished and g.last_number > 1)
        resumed = ingress.client.resume(broken.handle, after_number=broken.last_number)
        num_tokens = broken.answers[0].num_tokens
        assert num_tokens + (await resumed.all())[0].num_tokens == 150


async def test_credit_cancel_and_a_label_that_is_in_use_are_as_on_a_server(forward):
    async with forward() as ingress:
        generation = ingress.client.generate([3, 5], credit=3, **LONG)
        events = generation.events()
        while generation.answers[0].num_tokens < 3:
            await anext(events)
        await generation.credit(4)
        while generation.answers[0].num_tokens < 7:
            await anext(events)
        stream = ingress.client.stream(_commands(start("a", max_tokens=150), start("a")))
        rejected = [e async for r in stream for e in r.events if e.HasField("rejected")]
        assert [e.rejected.error.reason for e in rejected] == ["DUPLICATE_REQUEST_ID"]
        await generation.cancel()
        async for _ in events:
            pass
        assert generation.finished.reason == pb.FINISH_REASON_CANCELLED
        assert all(not e.gate.engine().load().num_running for e in ingress.engines.values())


async def _commands(*commands):
    for command in commands:
        yield command


async def test_abort_and_explain_find_a_request_by_handle_and_by_label(forward):
    async with forward() as ingress:
        generation = ingress.client.generate([3, 5], credit=0, request_id="job", **LONG)
        events = generation.events()
        await anext(events)
        stub = ingress.client._generation
        by_label = await stub.Explain(pb.ExplainRequest(request_id="job"))
        by_handle = await stub.Explain(pb.ExplainRequest(handle=generation.handle))
        assert [e.handle for e in by_label.explanations] == [generation.handle]
        assert by_handle.explanations[0].state == pb.REQUEST_STATE_SUSPENDED
        assert await ingress.client.abort(generation.handle)
        assert not await ingress.client.abort("e0.nothing")
        status = await status_of(stub.Explain(pb.ExplainRequest(request_id="job")))
        assert status.reason == "UNKNOWN_REQUEST"
        async for _ in events:
            pass
        assert generation.finished.reason == pb.FINISH_REASON_CANCELLED


async def test_one_request_in_a_call_and_the_other_services_pass_through(forward):
    async with forward() as ingress:
        request = pb.GenerateOneRequest(start=start(max_tokens=8).start)
        call = ingress.client._generation.GenerateOne(request)
        events = [event async for response in call for event in response.events]
        assert sum(event.tokens.num_tokens for event in events) == 8
        assert events[0].accepted.handle.partition(".")[0] in ingress.engines
        assert (await ingress.client.model_info()).vocab_size == 390
        assert await ingress.client.tokenize("hello")
        assert await ingress.client.is_serving()
        bad = pb.GenerateOneRequest(start=start(max_tokens=8, prompt=[400]).start)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await ingress.client._generation.GenerateOne(bad).read()
        assert Status.of(error.value).reason == "BAD_PARAMETER"


async def test_garbage_on_a_stream_ends_that_stream_alone(forward):
    async with forward() as ingress:
        held = ingress.client.generate([3, 5], **LONG)
        await held.send()
        method = ingress.client.channel.stream_stream("/chairlift.v1.GenerationService/Generate")
        for garbage in (b"\xff" * 40, b"\x0a\x02\x0a\xff", bytes(range(256)) * 8):
            call = method(_commands(start("b").SerializeToString(), garbage))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                async for _ in call:
                    pass
            assert Status.of(error.value).reason == "BAD_PARAMETER"
        stream = ingress.client.stream(_commands(pb.GenerateRequest(), cancel("unknown")))
        (event,) = [event async for response in stream for event in response.events]
        assert event.rejected.error.field == "command"
        assert (await held.all())[0].num_tokens == 150


async def test_a_replica_that_lies_about_its_load_gets_less_and_the_others_serve(forward):
    async def lie(_request, _context):
        from chairlift.v1 import server_pb2

        for _ in range(10_000):
            load = server_pb2.Load(num_waiting=2**32 - 1, num_running=2**32 - 1)
            yield server_pb2.WatchLoadResponse(load=load)
            await asyncio.sleep(0.05)

    from chairlift.v1 import server_pb2_grpc

    class Liar(server_pb2_grpc.ServerServiceServicer):
        WatchLoad = staticmethod(lie)

    server = grpc.aio.server()
    server_pb2_grpc.add_ServerServiceServicer_to_server(Liar(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        info = ReplicaInfo(f"127.0.0.1:{port}", num_tokens=2**40)
        async with forward(1, others={"liar": info}) as ingress:
            await ingress.until_up(2)
            prompts = [[3 + n, 5, 8] for n in range(24)]
            # It cannot even generate: what goes to it is sent again, to a replica that can.
            found = await answers(ingress.client, prompts, max_tokens=8, ignore_eos=True)
            assert all(answer.num_tokens == 8 for (answer,) in found)
    finally:
        await server.stop(0)


async def test_the_end_of_an_ingress_lets_live_requests_end_and_refuses_new_ones(forward):
    async with forward() as ingress:
        held = ingress.client.generate([3, 5], **LONG)
        events = held.events()
        await anext(events)
        stopping = asyncio.create_task(ingress.server.stop(20))
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as error:
            await ingress.client.generate([3], max_tokens=2).all()
        assert error.value.reason is Reason.DRAINING
        async for _ in events:
            pass
        assert held.answers[0].num_tokens == 150
        await stopping


async def test_tokens_and_tenants_are_those_of_the_replicas(forward, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("a:secret-of-tenant-a-0123456789\ningress:secret-of-ingress-0123456789\n")
    tokens.chmod(0o600)
    settings = {"auth_tokens": str(tokens)}
    async with forward(
        server=settings, engine_server=settings, token="secret-of-ingress-0123456789"
    ) as ingress:
        with pytest.raises(RequestError) as error:
            await ingress.client.generate([3, 5], max_tokens=2).all()
        assert error.value.reason is Reason.UNAUTHENTICATED
        async with connect_async(ingress.address, token="secret-of-tenant-a-0123456789") as client:
            generation = client.generate([3, 5], **LONG)
            events = generation.events()
            await anext(events)
            tenants = [
                live.tenant
                for engine in ingress.engines.values()
                for live in engine._context.live._by_handle.values()
            ]
            assert tenants == ["a"]
            async for _ in events:
                pass


async def test_without_a_replica_a_request_is_refused_as_unavailable(forward):
    async with forward(0) as ingress:
        with pytest.raises(RequestError) as error:
            await ingress.client.generate([3], max_tokens=2).all()
        assert error.value.reason is Reason.STARTING
        assert not await ingress.client.is_serving()


async def test_a_request_that_names_an_adapter_goes_to_a_replica_that_has_it(
    forward, tiny_folder, tmp_path
):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    folders = {name: str(adapters.write(tmp_path / name, model)) for name in ("up", "down")}

    def each(number):
        name = ("up", "down")[number]
        return {"adapters": {name: folders[name]}, "max_adapters": 1}

    async with forward(each=each) as ingress:
        for name, tag in (("up", "e0"), ("down", "e1")):
            # As many as would make the other replica the one with less to do.
            found = [ingress.client.generate([3 + n, 5], adapter=name, **LONG) for n in range(12)]
            await asyncio.gather(*(generation.all() for generation in found))
            assert {tag_of(generation) for generation in found} == {tag}
            assert all(generation.answers[0].num_tokens == 150 for generation in found)
        with pytest.raises(RequestError) as error:
            await ingress.client.generate([3], adapter="neither", max_tokens=2).all()
        assert error.value.reason is Reason.UNKNOWN_ADAPTER
        (holder,) = (replica for replica in ingress.replicas.up if replica.tag == "e0")
        ingress.replicas.lost(holder)
        with pytest.raises(RequestError, match="no replica that has the adapter is up") as error:
            ingress.replicas.choose(replace(NO_PROMPT, adapter="up"))
        assert error.value.reason is Reason.STARTING


async def test_replicas_load_an_adapter_that_a_request_names(forward, tiny_folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    for seed, name in enumerate(("up", "down")):
        adapters.write(tmp_path / "adapters" / name, model, seed=seed)
    on_demand = {"engine_server": {"adapters_on_demand": True}}

    async with forward(adapter_folder=str(tmp_path / "adapters"), **on_demand) as ingress:

        async def tags(adapter, num):
            found = [ingress.client.generate([3, n], adapter=adapter, **LONG) for n in range(num)]
            await asyncio.gather(*(generation.all() for generation in found))
            assert all(generation.answers[0].num_tokens == 150 for generation in found)
            return {tag_of(generation) for generation in found}

        def loaded():
            engines = ingress.engines.values()
            return [[a.name for a in e.gate.engine().engine.adapters.list()] for e in engines]

        # Few requests make one replica load it, and many make the other one do so too.
        (tag,) = await tags("up", 6)
        assert sorted(loaded()) == [[], ["up"]]
        assert await tags("up", 32) == {"e0", "e1"}
        assert loaded() == [["up"], ["up"]]
        # The other adapter finds its replica where the one that has it is lost.
        (tag,) = await tags("down", 2)
        (holder,) = (replica for replica in ingress.replicas.up if replica.tag == tag)
        ingress.replicas.lost(holder)
        ticket = ingress.replicas.choose(replace(NO_PROMPT, adapter="down"))
        assert ticket.replica.tag != tag
        ticket.end()
        with pytest.raises(RequestError) as error:
            await ingress.client.generate([3], adapter="neither", max_tokens=2).all()
        assert error.value.reason is Reason.UNKNOWN_ADAPTER
