"""The smallest proof that it runs: a server up, a prompt streamed, another cancelled."""

from chairlift.api.config import engine_config
from chairlift.client import connect_async
from chairlift.server.app.server import Server, ServerConfig
from chairlift.v1 import generation_pb2 as pb


async def test_a_prompt_is_streamed_and_another_cancelled():
    server = Server(engine_config(), ServerConfig(model="demo", listen="127.0.0.1:0"))
    address = await server.bind()
    await server.load()
    async with connect_async(address) as client:
        pieces = [piece async for piece in client.generate("Once upon a time", max_tokens=200)]
        assert len(pieces) > 1
        assert "".join(pieces).strip()

        endless = client.generate("Once upon a time", max_tokens=200, ignore_eos=True)
        async for event in endless.events():
            if event.HasField("tokens"):
                await endless.cancel()
        assert endless.finished.reason == pb.FINISH_REASON_CANCELLED

        load = await client.load()
        assert load.num_running == load.num_waiting == 0
        assert load.num_free_blocks == load.num_blocks
    await server.stop(0)
