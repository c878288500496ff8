"""`/metrics`, scraped and parsed as Prometheus does it."""

import asyncio
import re
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from chairlift.engine.engine import Engine
from chairlift.server.metrics import TenantLabels
from chairlift.server.metrics.instruments import STEP_PARTS
from chairlift.server.metrics.tenants import MAX_NAMES, OTHER
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM

from tests.engine import adapters
from tests.server.connection import next_event, receive, start, status_of, until

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"


@pytest.fixture
def settings(free_port):
    return {"metrics_listen": f"127.0.0.1:{free_port}"}


@pytest.fixture
def scrape(free_port):
    """Return the value of each sample: `name` or `name{label=value}`, histograms by their sums."""

    def now():
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics") as response:
            text = response.read().decode()
        return {
            named(sample): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    return lambda: asyncio.to_thread(now)


@contextmanager
def held(runner):
    """Keep the engine thread inside a step, so that one scrape sees one state."""
    run, reached, opened = runner.run, threading.Event(), threading.Event()

    def hold(inputs):
        reached.set()
        opened.wait()
        return run(inputs)

    runner.run = hold
    try:
        yield reached
    finally:
        runner.run = run
        opened.set()


def named(sample):
    labels = {name: value for name, value in sample.labels.items() if value}
    if not labels:
        return sample.name
    return sample.name + "{" + ",".join(f"{k}={v}" for k, v in sorted(labels.items())) + "}"


async def test_requests_and_tokens_are_counted(serve, settings, scrape):
    async with serve(server=settings) as server:
        call = server.generation.Generate()
        await call.write(start("long", max_tokens=250))
        await call.write(start("wrong", sampling=pb.Sampling(top_p=2)))
        await next_event(call, "tokens")
        call.cancel()
        await server.say(start("a", max_tokens=8), start("b", max_tokens=8))
        await server.until_idle()
        values = await scrape()
    assert values["chairlift_requests_ended_total{reason=length}"] == 2
    assert values["chairlift_requests_ended_total{reason=cancelled}"] == 1
    assert values["chairlift_requests_refused_total{reason=BAD_PARAMETER}"] == 1
    assert values["chairlift_requests_running"] == 0
    assert values["chairlift_requests_waiting"] == 0
    assert values["chairlift_kv_blocks_free"] == values["chairlift_kv_blocks"] > 0
    assert values["chairlift_prompt_tokens_total"] == 9
    assert values["chairlift_generated_tokens_total"] >= 17
    assert values["chairlift_time_to_first_token_seconds_count"] == 3
    assert values["chairlift_inter_token_latency_seconds_count"] >= 14
    # The end of a request whose client has disconnected is no event.
    assert values["chairlift_request_seconds_count"] == 3
    for part in ("queue", "prefill", "decode"):
        assert values[f"chairlift_request_{part}_seconds_count"] == 2


async def test_the_parts_of_the_steps_add_up(serve, settings, scrape):
    async with serve(server=settings) as server:
        await server.say(start("a", max_tokens=40))
        values = await scrape()
    assert values["chairlift_step_seconds_count"] >= 40
    parts = [values[f"chairlift_step_part_seconds_total{{part={part}}}"] for part in STEP_PARTS]
    assert sum(parts) == pytest.approx(values["chairlift_step_seconds_sum"])
    assert min(parts) > 0
    # One more than steps: the answer to the submission may come before the first.
    deliveries = values["chairlift_delivery_work_seconds_count"]
    assert deliveries == values["chairlift_delivery_wait_seconds_count"] >= 40
    assert values["chairlift_delivery_work_seconds_sum"] > 0


async def test_a_full_pool_shows_use_waste_and_preemptions(serve, settings, scrape, kv_blocks):
    async with serve(server=settings, kv_cache_memory=kv_blocks(10), max_num_seqs=4) as server:
        call = server.generation.Generate()
        for i in range(4):
            command = start(f"r{i}", max_tokens=100, prompt=[i + 1] * 20)
            command.start.output.timeline = True
            await call.write(command)
        await next_event(call, "tokens")
        during = await scrape()
        await call.done_writing()
        received = await receive(call)
        await server.until_idle()
        after = await scrape()
    assert all(received.of(f"r{i}")[-1].HasField("finished") for i in range(4))
    held = during["chairlift_kv_blocks"] - during["chairlift_kv_blocks_free"]
    assert during["chairlift_kv_usage_ratio"] == held / 10
    unwritten = during["chairlift_kv_slots_unwritten"]
    assert 0 <= unwritten < 16 * held
    assert during["chairlift_kv_waste_ratio"] == unwritten / (16 * held)
    assert after["chairlift_kv_usage_ratio"] == after["chairlift_kv_waste_ratio"] == 0
    assert after["chairlift_preemptions_total"] > 0
    timelines = [received.end(f"r{i}").finished.timeline for i in range(4)]
    assert after["chairlift_preemptions_total"] == sum(t.num_preemptions for t in timelines)
    assert after["chairlift_recomputed_tokens_total"] > 0
    assert after["chairlift_recomputed_tokens_total"] == sum(
        t.num_recomputed_tokens for t in timelines
    )


async def test_host_memory_and_swapped_tokens_are_counted(serve, settings, scrape, kv_blocks):
    sizes = {"kv_cache_memory": kv_blocks(10), "swap_memory": kv_blocks(30), "max_num_seqs": 4}
    async with serve(server=settings, prefix_cache=False, **sizes) as server:
        call = server.generation.Generate()
        for i in range(4):
            await call.write(start(f"r{i}", max_tokens=100, prompt=[i + 1] * 20))
        await call.done_writing()
        await receive(call)
        await server.until_idle()
        load = await server.load()
        values = await scrape()
    assert values["chairlift_host_blocks"] == load.num_host_blocks == 31
    assert values["chairlift_host_blocks_free"] == load.num_free_host_blocks == 31
    assert values["chairlift_swapped_tokens_total"] == load.num_swapped_tokens
    # Which of both is a matter of time.
    assert load.num_swapped_tokens + load.num_recomputed_tokens > 0


async def test_blocks_on_disk_are_counted(serve, settings, scrape, tmp_path):
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_bytes(bytes(32))
    store = {
        "prefix_store": str(tmp_path / "store"),
        "prefix_store_bytes": "1MiB",
        "prefix_store_key": str(key),
        "prefix_store_uses": 1,
    }
    counts = []
    for _ in range(2):
        async with serve(server=settings, **store) as server:
            received = await server.say(start("r", max_tokens=1, prompt=[7] * 49))
            counts.append(await scrape())
    assert counts[0]["chairlift_prefix_store_loaded_blocks_total"] == 0
    assert counts[1]["chairlift_prefix_store_loaded_blocks_total"] == 3
    assert counts[1]["chairlift_prefix_store_blocks"] == 3
    assert 0 < counts[1]["chairlift_prefix_store_bytes"] <= 2**20
    assert received.end("r").finished.usage.cached_tokens == 48


async def test_a_gateway_finds_the_names_it_looks_for(serve, settings, scrape, tiny_folder):
    async with serve(server=settings, max_num_seqs=2) as server:
        call = server.generation.Generate()
        with held(server.server.gate.engine().engine.runner) as reached:
            # While the first step is held the others queue up; the next step admits one of them.
            for i in range(3):
                await call.write(start(f"r{i}", max_tokens=200))
            assert await asyncio.to_thread(reached.wait, 60)
            await until(lambda: len(server.server._context.live) == 3)
        await server.until_load(lambda load: load.num_waiting == 1)
        with held(server.server.gate.engine().engine.runner) as reached:
            assert await asyncio.to_thread(reached.wait, 60)
            values = await scrape()
        call.cancel()
    of_model = f"{{model_name={tiny_folder.name}}}"
    for alias, name in (
        ("num_requests_running", "requests_running"),
        ("num_requests_waiting", "requests_waiting"),
        ("kv_cache_usage_perc", "kv_usage_ratio"),
        ("time_to_first_token_seconds_count", "time_to_first_token_seconds_count"),
        ("e2e_request_latency_seconds_count", "request_seconds_count"),
    ):
        assert values[f"vllm:{alias}{of_model}"] == values[f"chairlift_{name}"], alias
    assert values[f"vllm:num_requests_running{of_model}"] == 2
    assert values[f"vllm:num_requests_waiting{of_model}"] == 1
    blocks = int(values["chairlift_kv_blocks"])
    sizes = f"{{block_size=16,model_name={tiny_folder.name},num_gpu_blocks={blocks}}}"
    assert values[f"vllm:cache_config_info{sizes}"] == 1


async def test_a_gateway_finds_the_adapters_of_requests(
    serve, settings, scrape, tiny_folder, tmp_path
):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    names = ("up", "down")
    folders = [adapters.write(tmp_path / n, model, seed=i) for i, n in enumerate(names)]
    given = [f"{name}={folder}" for name, folder in zip(names, folders, strict=True)]
    sizes = {"adapters": given, "max_adapters": 3, "max_num_seqs": 1}

    def info(values):
        return [name for name in values if name.startswith("vllm:lora_requests_info")]

    async with serve(server=settings, **sizes) as server:
        assert info(await scrape()) == ["vllm:lora_requests_info{max_lora=3}"]
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=200, adapter="up"))
        await next_event(call, "tokens")
        await call.write(start("b", max_tokens=200, adapter="down"))
        await next_event(call, "accepted")
        with held(server.server.gate.engine().engine.runner) as reached:
            assert await asyncio.to_thread(reached.wait, 60)
            values = await scrape()
        labels = "max_lora=3,running_lora_adapters=up,waiting_lora_adapters=down"
        assert info(values) == [f"vllm:lora_requests_info{{{labels}}}"]
        assert values[info(values)[0]] > 1.7e9
        call.cancel()


async def test_calls_that_fail_are_counted_by_reason(serve, settings, scrape, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    settings |= {"auth_tokens": str(tokens), "write_timeout_s": 0.2}
    async with serve(server=settings) as server:
        status = await status_of(server.generation.Abort(pb.AbortRequest()))
        assert status.code is grpc.StatusCode.UNAUTHENTICATED
        for token in (ANN, BOB, BOB):
            bearer = (("authorization", f"Bearer {token}"),)
            await receive(server.generation.Generate(iter([start("a")]), metadata=bearer))
        window = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535))
        async with grpc.aio.insecure_channel(server.address, options=window) as channel:
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(metadata=bearer)
            wrong = pb.GenerateRequest(update=pb.Update(request_id="x" * 128))
            sending = asyncio.create_task(write_many(call, wrong))

            async def is_counted():
                return (await scrape())["chairlift_calls_failed_total{reason=SLOW_READER}"]

            await until(is_counted)
            sending.cancel()
        values = await scrape()
    assert values["chairlift_calls_failed_total{reason=UNAUTHENTICATED}"] == 1
    assert values["chairlift_calls_failed_total{reason=SLOW_READER}"] == 1
    assert values["chairlift_prompt_tokens_total{tenant=ann}"] == 3
    assert values["chairlift_generated_tokens_total{tenant=bob}"] == 16


async def write_many(call, message):
    for _ in range(20_000):
        await call.write(message)


async def test_names_that_callers_bring_are_bounded(serve, settings, scrape):
    async with serve(server=settings | {"trust_tenant_metadata": True}) as server:
        for i in range(MAX_NAMES + 3):
            named = (("chairlift-tenant", f"t{i}"),)
            call = server.generation.Generate(iter([start("a", max_tokens=1)]), metadata=named)
            await receive(call)
        values = await scrape()
    per_tenant = {k: v for k, v in values.items() if k.startswith("chairlift_generated_tokens_t")}
    assert len(per_tenant) == MAX_NAMES + 1
    assert per_tenant[f"chairlift_generated_tokens_total{{tenant={OTHER}}}"] == 3


def test_tenants_of_the_operators_own_list_have_all_a_label():
    label = TenantLabels(is_closed=True)
    names = [f"t{i}" for i in range(2 * MAX_NAMES)]
    assert [label(name) for name in names] == names


async def test_a_restart_of_the_engine_is_counted(serve, settings, scrape, monkeypatch):
    async with serve(server=settings) as server:
        assert (await scrape())["chairlift_engine_restarts_total"] == 0
        with monkeypatch.context() as broken:

            def break_down(*_):
                raise MemoryError

            broken.setattr(Engine, "advance", break_down)
            await server.say(start("a"))
        await until(
            lambda: server.server.metrics.registry.get_sample_value(
                "chairlift_engine_restarts_total"
            )
        )
        assert (await server.say(start("a"))).end("a").HasField("finished")


async def test_the_documentation_lists_every_metric(serve, settings, scrape):
    async with serve(server=settings) as server:
        await server.say(start("a"))
        values = await scrape()
    text = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    listed = {name.partition("{")[0] for name in re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)}
    for sample in values:
        name = sample.partition("{")[0]
        if not name.endswith("_created"):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in listed
