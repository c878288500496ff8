"""`ServerService`, `TokenizerService`, reflection and health."""

import asyncio
import gc
import itertools
import threading
from types import SimpleNamespace

import grpc
import pytest
from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.engine.loading import draft
from chairlift.server.calls.registry import LiveRequest
from chairlift.server.ops.health import MAX_WATCHES
from chairlift.server.services.overview import to_load
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2, tokenizer_pb2
from google.protobuf import descriptor_pb2, duration_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.engine import tiny_model
from tests.server.connection import Status, receive, start

SERVICES = {
    f"chairlift.v1.{name}Service"
    for name in ("Generation", "Embedding", "Tokenizer", "Server", "Admin")
}


async def test_server_and_model_describe_themselves(serve, tiny_folder):
    async with serve(batching="dynamic", max_num_seqs=4) as server:
        info = await server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
        assert info.state == server_pb2.SERVER_STATE_SERVING
        assert info.version
        sets = ("amx", "avx512bf16", "avx512vnni", "avx512", "avx2", "portable")
        assert info.kernels in sets
        assert (info.batching, info.max_num_seqs, info.block_size) == ("dynamic", 4, 16)
        assert info.num_blocks > 0
        assert info.max_receive_bytes == info.max_text_bytes == 2**20
        assert (info.max_concurrent_streams, info.max_chat_messages) == (256, 4096)
        assert (info.max_stop_strings, info.max_stop_token_ids) == (16, 128)
        assert info.max_request_id_bytes == 128
        model = await server.info.GetModelInfo(server_pb2.GetModelInfoRequest())
        assert model.name == tiny_folder.name
        assert model.architecture == "LlamaForCausalLM"
        assert model.vocab_size == tiny_model.VOCAB_SIZE
        assert model.max_model_len == tiny_model.MAX_MODEL_LEN
        assert list(model.eos_token_ids) == [tiny_model.EOS]
        assert model.dtype == "float32"
        assert model.has_chat_template
        assert model.quantization == "none"
        assert model.kv_cache_dtype == "float32"
        assert model.sampling_defaults.top_p == 1


async def test_model_info_names_the_formats_of_weights_keys_and_values(serve):
    async with serve(quantize="int8", kv_cache_dtype="int8", device="cpu") as server:
        model = await server.info.GetModelInfo(server_pb2.GetModelInfoRequest())
        assert (model.dtype, model.quantization, model.kv_cache_dtype) == (
            "float32",
            "int8",
            "int8",
        )


async def test_memory_is_planned_for_the_served_model(serve):
    async with serve(max_num_seqs=4) as server:
        info = await server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
        now = await server.info.PlanMemory(server_pb2.PlanMemoryRequest())
        assert now.num_blocks == info.num_blocks
        assert now.kv_cache_bytes == (now.num_blocks + 1) * now.block_bytes
        other = server_pb2.PlanMemoryRequest(kv_cache_memory=10 * now.block_bytes)
        plan = await server.info.PlanMemory(other)
        assert (plan.num_blocks, plan.weight_bytes) == (9, now.weight_bytes)
        more = server_pb2.PlanMemoryRequest(max_num_batched_tokens=1024)
        assert (await server.info.PlanMemory(more)).activation_bytes > now.activation_bytes
        assert (now.swap_bytes, now.num_host_blocks) == (0, 0)
        swapping = server_pb2.PlanMemoryRequest(swap_memory=10 * now.block_bytes)
        plan = await server.info.PlanMemory(swapping)
        assert (plan.swap_bytes, plan.num_host_blocks) == (10 * now.block_bytes, 10)


@pytest.mark.parametrize("field", ["kv_cache_memory", "swap_memory"])
@pytest.mark.parametrize(("num_bytes", "expected"), [(1, "at least"), (2**64 - 1, "at most")])
async def test_memory_that_no_pool_can_have_is_refused(serve, field, num_bytes, expected):
    async with serve() as server:
        with pytest.raises(grpc.aio.AioRpcError, match=f"{field}: expected {expected} ") as error:
            await server.info.PlanMemory(server_pb2.PlanMemoryRequest(**{field: num_bytes}))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_tokenizer_is_the_one_that_generate_uses(serve):
    async with serve() as server:
        tokenizer = server.tokenizer
        ids = (await tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(text="größe 日本"))).token_ids
        text = (await tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(token_ids=ids))).text
        assert text == "größe 日本"
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", text="go")])
        prompt = await tokenizer.ApplyChatTemplate(
            tokenizer_pb2.ApplyChatTemplateRequest(chat=chat)
        )
        assert prompt.text == "<user>go\n<assistant>"
        received = await server.say(
            start("chat", prompt=chat), start("ids", prompt=prompt.token_ids)
        )
        assert received.tokens("chat") == received.tokens("ids")


async def test_the_load_is_watched_until_the_server_drains(serve):
    async with serve() as server:
        interval = duration_pb2.Duration(nanos=100_000_000)
        call = server.info.WatchLoad(server_pb2.WatchLoadRequest(interval=interval))
        loads = [(await call.read()).load for _ in range(2)]
        assert all(load.num_blocks == load.num_free_blocks > 0 for load in loads)
        stopping = asyncio.create_task(server.server.stop(0))
        while await call.read() is not grpc.aio.EOF:
            pass
        assert await call.code() is grpc.StatusCode.OK
        await stopping


async def test_steps_name_the_request_of_each_row(serve):
    # Two requests that are long enough for the third one to arrive meanwhile, and wait.
    lengths = {"a": 150, "b": 150, "c": 4}
    async with serve(max_num_seqs=2, max_num_batched_tokens=8, drafts="off") as server:
        watch = server.info.WatchSteps(server_pb2.WatchStepsRequest())
        await watch.initial_metadata()
        call = server.generation.Generate(
            iter([start(name, prompt=range(1, 12), max_tokens=n) for name, n in lengths.items()])
        )
        received = await receive(call)
        handles = {e.request_id: e.accepted.handle for e in received.events if e.accepted.handle}
        num_steps = (await server.load()).num_steps
        steps = []
        while not steps or steps[-1].step < num_steps:
            response = await watch.read()
            assert response.num_dropped == 0
            steps += response.steps
        assert [step.step for step in steps] == list(range(steps[0].step, num_steps + 1))
        starts = [step.start.ToNanoseconds() for step in steps]
        assert starts == sorted(starts)
        assert all(step.duration.ToNanoseconds() > 0 for step in steps)
        assert any(step.num_waiting for step in steps)
        for name, handle in handles.items():
            rows = [row for step in steps for row in step.rows if row.request_id == name]
            assert {row.handle for row in rows} == {handle}
            # 11 tokens of prompt, computed in chunks, and all but the last one that follow.
            assert sum(row.num_tokens for row in rows) == 11 + lengths[name] - 1
            assert [row.sampled for row in rows].count(True) == lengths[name]
            assert not rows[0].sampled
            assert len({row.row for row in rows}) == 1
        assert all(sum(row.num_tokens for row in step.rows) <= 8 for step in steps)
        watch.cancel()


async def test_health_knows_every_service(serve):
    async with serve() as server:
        for service in ("", *SERVICES):
            assert await server.health(service) == "SERVING"
        watch = server.health_stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(server.server.stop(0))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stopping


async def test_reflection_lists_every_service(serve):
    async with serve() as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]))
        response = await call.read()
        names = {service.name for service in response.list_services_response.service}
        assert names >= SERVICES | {"grpc.health.v1.Health"}
        assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize(
    "symbol", ["GenerationService", "GenerationService.GenerateOne", "GenerateOneRequest"]
)
async def test_reflection_finds_the_file_of_a_name(serve, symbol):
    async with serve() as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        request = reflection_pb2.ServerReflectionRequest(
            file_containing_symbol=f"chairlift.v1.{symbol}"
        )
        response = await stub.ServerReflectionInfo(iter([request])).read()
        files = response.file_descriptor_response.file_descriptor_proto
        names = [descriptor_pb2.FileDescriptorProto.FromString(file).name for file in files]
        assert "chairlift/v1/generation.proto" in names


async def test_reflection_says_that_there_is_no_such_name(serve):
    async with serve() as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        request = reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="chairlift.v1.GenerationService.Fly"
        )
        response = await stub.ServerReflectionInfo(iter([request])).read()
        assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def kept_requests():
    gc.collect()
    return [o for o in gc.get_objects() if type(o) is LiveRequest]


async def test_a_request_that_has_ended_leaves_its_names_and_nothing_else(serve):
    # A traceback that pytest keeps of another test may hold a request of that test.
    before = kept_requests()
    async with serve() as server:
        await server.say(start("a"))
        await server.until_idle()
        after = kept_requests()
        assert len(after) == len(before)


def test_every_count_of_the_scheduler_is_reported():
    counts = [name for name in dir(_core.Load) if name.startswith("num_")]
    load = dict(zip(counts, itertools.count(1)))
    message = to_load(SimpleNamespace(**load))
    found = {field.name: value for field, value in message.ListFields() if not field.message_type}
    entries = message.waiting_by_cause
    causes = {pb.WaitCause.Name(entry.cause): entry.count for entry in entries}
    for name, count in causes.items():
        found[f"num_waiting_{name.removeprefix('WAIT_CAUSE_').lower()}"] = count
    assert found == load
    fields = {f.name for f in server_pb2.Load.DESCRIPTOR.fields if f.message_type is None}
    assert fields == {name for name in counts if name in fields} | {"num_steps"}
    assert len(causes) == len(pb.WaitCause.items()) - 1


async def test_a_load_has_the_map_of_the_blocks_if_it_is_asked_for(serve):
    async with serve(prefix_cache=True) as server:
        plain = (await server.info.GetLoad(server_pb2.GetLoadRequest())).load
        assert not plain.HasField("block_map")
        call = await server.say(start("a", max_tokens=40))
        assert call.end("a").HasField("finished")
        load = (await server.info.GetLoad(server_pb2.GetLoadRequest(block_map=True))).load
        cells = load.block_map
        assert sum(cells.held) + sum(cells.cached) + sum(cells.free) == load.num_blocks
        assert sum(cells.held) == 0
        assert sum(cells.cached) == load.num_cached_blocks > 0
        watch = server.info.WatchLoad(server_pb2.WatchLoadRequest(block_map=True))
        assert list((await watch.read()).load.block_map.free) == list(cells.free)
        watch.cancel()


async def test_a_load_has_the_times_between_tokens_once_there_were_some(serve):
    async with serve() as server:
        load = (await server.info.GetLoad(server_pb2.GetLoadRequest())).load
        assert not load.HasField("inter_token_latency_p50")
        await server.say(start("a", max_tokens=40))
        load = (await server.info.GetLoad(server_pb2.GetLoadRequest())).load
        median, slowest = load.inter_token_latency_p50, load.inter_token_latency_p99
        # A step takes a millisecond at least.
        assert 1_000 <= median.ToMicroseconds() <= slowest.ToMicroseconds()


def test_a_memory_plan_takes_settings_by_their_names():
    fields = set(server_pb2.PlanMemoryRequest.DESCRIPTOR.fields_by_name) - {"model"}
    assert fields <= set(EngineConfig.model_fields)


async def test_a_memory_plan_holds_up_no_other_call(serve):
    async with serve() as server:
        # All threads for texts are busy.
        release, texts = threading.Event(), server.server._engine.texts
        jobs = [asyncio.create_task(texts.run(release.wait, tenant=n, size=1)) for n in range(16)]
        await asyncio.sleep(0)
        planning = asyncio.ensure_future(server.info.PlanMemory(server_pb2.PlanMemoryRequest()))
        assert (await server.say(start("a"))).end("a").HasField("finished")
        assert not planning.done()
        release.set()
        assert (await planning).num_blocks > 0
        await asyncio.gather(*jobs)


async def test_a_memory_plan_does_not_look_for_a_draft_model_again(serve, tiny_folder, monkeypatch):
    names, resolve = [], draft.resolve_model

    def found(name):
        names.append(name)
        return tiny_folder if name == "hub/model" else resolve(name)

    monkeypatch.setattr(draft, "resolve_model", found)
    async with serve(draft="hub/model") as server:
        assert "hub/model" in names
        names.clear()
        plan = await server.info.PlanMemory(server_pb2.PlanMemoryRequest())
        assert plan.draft_bytes > 0
        assert names == [str(tiny_folder)]


async def test_health_lists_each_service_and_refuses_a_check_of_an_unknown_one(serve):
    async with serve() as server:
        listed = (await server.health_stub.List(health_pb2.HealthListRequest())).statuses
        assert listed.keys() >= SERVICES | {""}
        serving = health_pb2.HealthCheckResponse.SERVING
        assert {status.status for status in listed.values()} == {serving}
        unknown = health_pb2.HealthCheckRequest(service="nothing.Here")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await server.health_stub.Check(unknown)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        watch = server.health_stub.Watch(unknown)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


async def test_health_watches_of_a_connection_have_a_share_and_others_can_watch(serve):
    async with serve(listen="127.0.0.1:0", server={"max_concurrent_streams": 1000}) as server:
        request = health_pb2.HealthCheckRequest()
        watches = [server.health_stub.Watch(request) for _ in range(MAX_WATCHES * 3 // 4)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await server.health_stub.Watch(request).read()
        assert Status.of(failed.value).reason == "QUOTA_EXCEEDED"
        own = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(server.address, options=own) as channel:
            assert await health_pb2_grpc.HealthStub(channel).Watch(request).read()


async def test_reflection_v1_answers_as_v1alpha_does(serve):
    async with serve() as server:
        request = reflection_pb2.ServerReflectionRequest
        answers = []
        for version in ("v1", "v1alpha"):
            call = server.channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=request.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )
            own = f"grpc.reflection.{version}.ServerReflection"
            asked = [request(list_services=""), request(file_containing_symbol=own)]
            listed, described = [answer async for answer in call(iter(asked))]
            answers.append(listed.list_services_response)
            (file,) = described.file_descriptor_response.file_descriptor_proto
            parsed = descriptor_pb2.FileDescriptorProto.FromString(file)
            assert parsed.package == f"grpc.reflection.{version}"
            assert [service.name for service in parsed.service] == ["ServerReflection"]
        assert answers[0] == answers[1]
        assert "grpc.reflection.v1.ServerReflection" in {s.name for s in answers[0].service}
