"""The Python clients: many callers, one stream."""

import asyncio
import subprocess
import sys

import pytest
from chairlift.api.errors import Reason, RequestError, ServerError
from chairlift.api.types import Chat, ChatMessage
from chairlift.client import connect, connect_async, new_start
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import until

GREEDY = {"temperature": 0.0, "ignore_eos": True}


async def on_thread(work):
    """The blocking client lives on a thread: the server's event loop is this one."""
    return await asyncio.to_thread(work)


async def test_many_callers_share_one_stream_and_get_their_own_answers(serve):
    async with serve() as server, connect_async(server.address) as client:
        prompts = [[i, i + 1, i + 2] for i in range(20)]
        alone = [await client.generate(p, max_tokens=8, **GREEDY).text() for p in prompts]
        together = await asyncio.gather(
            *(client.generate(p, max_tokens=8, **GREEDY).text() for p in prompts)
        )
        assert together == alone
        assert len(set(alone)) > 1


async def test_text_comes_in_pieces_and_the_end_has_a_reason(serve):
    async with serve() as server, connect_async(server.address) as client:
        options = {"max_tokens": 8, "timeline": True, **GREEDY}
        whole = await client.generate([1, 2, 3], **options).text()
        # A fast server may send all at once; half of it cannot wait for the rest.
        generation = client.generate([1, 2, 3], credit=4, **options)
        pieces = []
        async for piece in generation:
            if not pieces:
                await generation.credit(4)
            pieces.append(piece)
        assert len(pieces) > 1
        assert "".join(pieces) == whole
        assert generation.accepted.num_prompt_tokens == 3
        assert generation.finished.reason == pb.FINISH_REASON_LENGTH
        assert generation.finished.usage.output_tokens == 8
        assert generation.finished.HasField("timeline")


async def test_prompts_may_be_text_ids_or_chat(serve):
    async with serve() as server, connect_async(server.address) as client:
        chat = Chat([ChatMessage("user", "go")])
        by_chat = await client.generate(chat, max_tokens=8, **GREEDY).text()
        ids = list(await client.tokenize("<user>go\n<assistant>"))
        assert by_chat == await client.generate(ids, max_tokens=8, **GREEDY).text()


async def test_several_answers_are_kept_apart(serve):
    drawn = {"max_tokens": 8, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    async with serve() as server, connect_async(server.address) as client:
        one = await client.generate([1, 2, 3], token_ids=True, **drawn).all()
        answers = await client.generate([1, 2, 3], token_ids=True, n=3, **drawn).all()
        assert [answer.index for answer in answers] == [0, 1, 2]
        assert answers[0].token_ids == one[0].token_ids
        assert [answer.num_tokens for answer in answers] == [8, 8, 8]
        assert len({answer.text for answer in answers}) == 3
        assert all(answer.finished.reason == pb.FINISH_REASON_LENGTH for answer in answers)
        assert await client.generate([1, 2, 3], n=3, **drawn).text() == answers[0].text


async def test_several_answers_for_threads(serve):
    drawn = {"max_tokens": 8, "temperature": 1.0, "seed": 3, "ignore_eos": True, "n": 2}

    def request(address):
        with connect(address) as client:
            return client.generate([1, 2, 3], **drawn).all()

    async with serve() as server:
        answers = await asyncio.to_thread(request, server.address)
        assert [answer.num_tokens for answer in answers] == [8, 8]
        assert answers[0].text != answers[1].text


async def test_a_refusal_is_an_error_with_reason_and_field(serve):
    async with serve() as server, connect_async(server.address) as client:
        with pytest.raises(RequestError) as caught:
            await client.generate([1], top_p=2).text()
        assert (caught.value.reason, caught.value.field) == (
            Reason.BAD_PARAMETER,
            "sampling.top_p",
        )
        # The stream goes on.
        assert await client.generate([1], max_tokens=2, **GREEDY).text()


async def test_cancel_ends_one_and_leaves_the_others(serve):
    async with serve() as server, connect_async(server.address) as client:
        other = asyncio.create_task(client.generate([5], max_tokens=100, **GREEDY).text())
        generation = client.generate([1, 2, 3], max_tokens=250, **GREEDY)
        async for _ in generation:
            await generation.cancel()
        assert generation.finished.reason == pb.FINISH_REASON_CANCELLED
        assert await other


async def test_a_caller_that_ends_amid_a_command_leaves_the_others(serve):
    """A task that is cancelled while it writes: a web service does that where a reader leaves."""
    async with serve() as server, connect_async(server.address) as client:
        stays, leaves = (client.generate([i], max_tokens=100, credit=10, **GREEDY) for i in (1, 2))
        texts = [aiter(generation) for generation in (stays, leaves)]
        for text in texts:
            await anext(text)
        command = asyncio.ensure_future(leaves.credit(1))
        # It waits for gRPC by then.
        await asyncio.sleep(0)
        command.cancel()
        await stays.credit(90)
        async for _ in texts[0]:
            pass
        assert stays.finished.usage.output_tokens == 100
        await texts[1].aclose()


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_request_whose_caller_is_cancelled_while_it_is_sent_ends(serve, num_turns):
    async with serve() as server, connect_async(server.address) as client:
        generation = client.generate([1, 2, 3], max_tokens=250, credit=1, **GREEDY)
        task = asyncio.ensure_future(generation.text())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        # The other request comes behind it on the stream.
        assert await client.generate([1], max_tokens=2, **GREEDY).text()
        await server.until_idle()


async def test_credit_resumes_a_request(serve):
    async with serve() as server, connect_async(server.address) as client:
        alone = await client.generate([1, 2, 3], max_tokens=6, **GREEDY).text()
        generation = client.generate([1, 2, 3], max_tokens=6, credit=1, **GREEDY)
        num_tokens, texts = 0, []
        async for event in generation.events():
            num_tokens += event.tokens.num_tokens
            texts.append(event.tokens.text)
            # Each token comes because the one before it was paid for.
            if event.HasField("tokens") and num_tokens < 6:
                await generation.credit(1)
        assert "".join(texts) == alone


async def test_an_update_changes_a_live_request_and_a_wrong_one_does_not(serve):
    async with serve() as server, connect_async(server.address) as client:
        generation = client.generate([1, 2, 3], max_tokens=250, credit=1, **GREEDY)
        kinds = []
        async for event in generation.events():
            kinds.append(event.WhichOneof("event"))
            if event.HasField("accepted"):
                await generation.update(max_tokens=0)
            elif event.HasField("rejected"):
                assert generation.rejected.field == "update.stopping.max_tokens"
                await generation.update(max_tokens=3, ignore_eos=True)
                await generation.credit(100)
        assert "rejected" in kinds
        assert generation.finished.usage.output_tokens == 3


async def test_the_blocking_client_sends_updates_and_credit(serve):
    async with serve() as server:

        def work():
            with connect(server.address) as client:
                generation = client.generate([1, 2, 3], max_tokens=250, credit=0, **GREEDY)
                generation.update(max_tokens=4, ignore_eos=True)
                generation.credit(9)
                list(generation.events())
                return generation.finished.usage.output_tokens

        assert await on_thread(work) == 4


async def test_leaving_the_loop_cancels(serve):
    async with serve() as server, connect_async(server.address) as client:
        events = client.generate([1, 2, 3], max_tokens=250, **GREEDY).events()
        async for event in events:
            if event.HasField("tokens"):
                break
        await events.aclose()
        await until(lambda: server.num_ended("cancelled") == 1)
        await server.until_idle()


async def test_a_lost_connection_is_an_error_for_every_caller_and_the_next_call_works(serve):
    async with serve() as server, connect_async(server.address) as client:
        callers = [
            asyncio.create_task(client.generate([i], max_tokens=250, **GREEDY).text())
            for i in range(3)
        ]
        await server.until_load(lambda load: load.num_running == 3)
        client._stream._call.cancel()
        for caller in callers:
            with pytest.raises((ServerError, RequestError)):
                await caller
        assert await client.generate([1], max_tokens=2, **GREEDY).text()


async def test_no_server_is_a_server_error(tmp_path):
    async with connect_async(f"unix:{tmp_path}/absent.sock") as client:
        with pytest.raises(ServerError, match="UNAVAILABLE"):
            await client.generate([1]).text()
        with pytest.raises(ServerError, match="UNAVAILABLE"):
            await client.load()


async def test_generate_all_half_closes_so_that_a_static_batch_runs(serve):
    settings = {"batching": "static", "batch_timeout_s": 3600}
    async with serve(**settings) as server, connect_async(server.address) as client:
        starts = [new_start([i], max_tokens=4, **GREEDY) for i in range(3)]
        generations = await client.generate_all(starts)
        texts = await asyncio.gather(*(generation.text() for generation in generations))
        assert all(texts)


async def test_info_load_health_steps_and_abort(serve):
    async with serve() as server, connect_async(server.address) as client:
        assert await client.is_serving()
        assert (await client.server_info()).batching == "continuous"
        assert (await client.model_info()).architecture == "LlamaForCausalLM"
        assert (await client.load()).num_running == 0
        steps = await client.watch_steps()
        generation = client.generate([1, 2, 3], max_tokens=200, **GREEDY)
        async for _ in generation:
            await client.abort(generation.accepted.handle)
        assert generation.finished.reason == pb.FINISH_REASON_CANCELLED
        step = await anext(steps)
        assert step.rows[0].request_id == generation.request_id
        await steps.aclose()


async def test_the_blocking_client_does_the_same(serve):
    def work():
        with connect(server.address) as client:
            assert client.is_serving()
            assert client.server_info().batching == "continuous"
            assert client.model_info().architecture == "LlamaForCausalLM"
            steps = client.watch_steps()
            first = client.generate([1, 2, 3], max_tokens=8, request_id="first", **GREEDY)
            second = client.generate([1, 2, 3], max_tokens=8, **GREEDY)
            assert list(first)
            assert first.finished.reason == pb.FINISH_REASON_LENGTH
            assert next(steps).rows[0].request_id == "first"
            steps.close()
            text = second.text()
            (again,) = client.generate_all([new_start([1, 2, 3], max_tokens=8, **GREEDY)])
            assert again.text() == text
            with pytest.raises(RequestError, match=r"top_p"):
                client.generate([1], top_p=2).text()
            endless = client.generate([1, 2, 3], max_tokens=250, **GREEDY)
            for _ in endless:
                assert client.abort(endless.accepted.handle) in (True, False)
            assert endless.finished.reason == pb.FINISH_REASON_CANCELLED
            for event in client.generate([1, 2, 3], max_tokens=250, **GREEDY).events():
                if event.HasField("tokens"):
                    break
            return client.load()

    async with serve() as server:
        load = await on_thread(work)
        assert load.num_blocks > 0
        await server.until_idle()


async def test_the_blocking_client_raises_without_a_server(tmp_path):
    def work():
        with connect(f"unix:{tmp_path}/absent.sock") as client:
            with pytest.raises(ServerError, match="UNAVAILABLE"):
                client.generate([1]).text()
            with pytest.raises(ServerError, match="UNAVAILABLE"):
                client.load()

    await on_thread(work)


def test_the_client_loads_neither_torch_nor_a_server():
    program = (
        "import chairlift.client, sys; "
        "print([m for m in sys.modules if m == 'torch' or m.startswith('chairlift.server')])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")
